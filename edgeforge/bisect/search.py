"""The search for a small set that still fails, over any question that can be asked of a set."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Set = tuple[int, ...]


def smallest(whole: Sequence[int], fails: Callable[[Set], bool], guess: Sequence[int] = ()) -> Set:
    """A subset of whole that fails and from which no single member can be left out.

    Halving from the end, then from the start, then what is between in ever smaller chunks (delta debugging,
    Zeller 1999). One culprit among n costs about 2 log2 n questions. Every accepted set was seen to fail, so
    the result holds also where a larger set does not fail.

    Args:
        whole: seen to fail; order matters: neighbours are tried together.
        guess: a subset to ask for first, when something points at it.
    """
    found = tuple(whole)
    if guess and len(guess) < len(found) and fails(tuple(guess)):
        found = tuple(guess)
    found = found[: _first(len(found), lambda k: fails(found[:k]))]
    last = len(found) - _first(len(found), lambda k: fails(found[len(found) - k:]))
    return _thinned(found[last:], fails)


def _first(size: int, holds: Callable[[int], bool]) -> int:
    """A k in 1..size with holds(k), by halving; size is known to hold."""
    low, high = 0, size
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def _thinned(found: Set, fails: Callable[[Set], bool]) -> Set:
    chunk = max(len(found) // 2, 1)
    while len(found) > 1:
        at, before = 0, len(found)
        while at < len(found):
            rest = found[:at] + found[at + chunk:]
            if rest and fails(rest):
                found = rest
            else:
                at += chunk
        if chunk == 1 and len(found) == before:
            break
        chunk = max(min(chunk // 2, len(found) // 2), 1)
    return found
