"""How names and errors read in a message."""

from __future__ import annotations

from collections.abc import Iterable


def names(found: Iterable[str], limit: int = 4) -> str:
    """The first few names, and how many more there are."""
    ordered = sorted(found)
    more = f" and {len(ordered) - limit} more" if len(ordered) > limit else ""
    return ", ".join(ordered[:limit]) + more


def one_line(error: BaseException) -> str:
    """Type and text of an error, without its line breaks, cut where it gets long."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:600]}{' ...' if len(text) > 600 else ''}"
