"""Where to cut a row of layers into parts of at most so many bytes: arithmetic, for the split and its forecast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise


def fit(ends: Sequence[int], start: int, stop: int, limit: int) -> list[int] | None:
    """Indices into ends at which to cut: the fewest parts, balanced, of at most limit bytes each.

    Args:
        ends: bytes before each place where one may cut, growing. start, stop: bytes before the first layer and
            behind the last.

    Returns:
        None when the pieces between neighbouring places are already larger than limit.
    """
    for parts in range(max(math.ceil((stop - start) / limit), 1), len(ends) + 2):
        chosen = _balanced(ends, start, stop, parts)
        if largest([ends[i] for i in chosen], start, stop) <= limit:
            return chosen
    return None


def largest(ends: Sequence[int], start: int, stop: int) -> int:
    """Bytes of the largest piece between neighbouring places."""
    return max(b - a for a, b in pairwise([start, *ends, stop]))


def _balanced(ends: Sequence[int], start: int, stop: int, parts: int) -> list[int]:
    chosen: list[int] = []
    for k in range(1, parts):
        goal = start + (stop - start) * k / parts
        free = [i for i in range(len(ends)) if i not in chosen]
        if free:
            chosen.append(min(free, key=lambda i: abs(ends[i] - goal)))
    return sorted(chosen)
