"""Bits by weight name: what the recipe says of single weights, over what it says of all."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase


def bits(name: str, exceptions: Mapping[str, int]) -> int | None:
    """What the longest pattern that matches name says (of equals the last in the alphabet); None when none does."""
    said = [pattern for pattern in exceptions if fnmatchcase(name, pattern)]
    return exceptions[max(said, key=lambda p: (len(p), p))] if said else None


def unmatched(exceptions: Mapping[str, int], names: Collection[str]) -> dict[str, str]:
    """The patterns that match none of names, each with the name nearest to it ("" when there are no names)."""
    found = {}
    for pattern in exceptions:
        if not any(fnmatchcase(name, pattern) for name in names):
            found[pattern] = next(iter(difflib.get_close_matches(pattern, names, 1, cutoff=0)), "")
    return found


def pattern(name: str) -> str:
    """The pattern that matches name alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
