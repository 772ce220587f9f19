"""Which weights get 8 bits when 4 are not enough for all: the most loss mended for each bit added.

Every budget takes the head of one ranking, so a larger budget never takes a bit away from a weight, and what is
taken is within one weight's gain of the best that fits (the bound of the greedy knapsack).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

LOW, HIGH = 4, 8
"""bits to choose from"""
FITS = 4
"""models that the search for a KL divergence may fit"""
_AIM = 0.95


@dataclass(frozen=True)
class Choice:
    """A weight that may have 4 bits or 8.

    stored: bits of codes and scales, loss: what its error costs (see sensitivity.py); both at 4 and at 8 bits.
    """

    name: str
    count: int
    stored: tuple[int, int]
    loss: tuple[float, float]

    @property
    def gain(self) -> float:
        return self.loss[0] - self.loss[1]

    @property
    def added(self) -> int:
        return self.stored[1] - self.stored[0]


def stored_bits(inputs: int, outputs: int, bits: int, block: int | None, half: bool) -> int:
    """Bits of a weight's codes and steps as shipped: a float32 an output, 4 bits a block's whole number; a float16 an
    output or block where steps are half."""
    if half:
        return inputs * outputs * bits + 16 * (inputs // block if block else 1) * outputs
    return inputs * outputs * bits + 32 * outputs + (4 * (inputs // block) * outputs if block else 0)


def rank(choices: Iterable[Choice]) -> list[Choice]:
    """Those that gain by 8 bits, the most a bit first; equals by name."""
    return sorted((c for c in choices if c.gain > 0), key=lambda c: (-c.gain / c.added, c.name))


def affordable(ranking: Sequence[Choice], room: int) -> int:
    """How many from the head of ranking add no more than room bits."""
    return sum(total <= room for total in accumulate(c.added for c in ranking))


def left(choices: Iterable[Choice], ranking: Sequence[Choice]) -> list[float]:
    """The loss of all choices together when the first 0, 1, ... of ranking have 8 bits."""
    return list(accumulate((-c.gain for c in ranking), initial=sum(c.loss[0] for c in choices)))


def search(losses: Sequence[float], target: float, measure: Callable[[int], float], fits: int = FITS) -> int:
    """The least k found with measure(k) <= target; the k that came nearest when there is none.

    A line through what was measured says where to look next: KL grows with the loss nearly in proportion. It aims a
    little lower than the target, which otherwise half of the attempts would miss.

    Args:
        losses: falling; of the model with k weights raised, k = 0 ... len(losses) - 1.
        measure: the KL of that model, nats. Called at most `fits` times, never twice for one k.
    """
    tried: dict[int, float] = {}
    below, above = -1, len(losses)
    while len(tried) < fits and above - below > 1:
        k = _next(losses, target, tried, below, above, last=len(tried) == fits - 1)
        tried[k] = measure(k)
        below, above = (below, k) if tried[k] <= target else (k, above)
    return best(tried, target)


def best(tried: Mapping[int, float], target: float) -> int:
    """The least k that met the target, or the k of the least KL."""
    met = [k for k, kl in tried.items() if kl <= target]
    return min(met) if met else min(tried, key=lambda k: (tried[k], k))


def _next(losses: Sequence[float], target: float, tried: dict[int, float], below: int, above: int,
          last: bool) -> int:
    """Where to measure, strictly between below (missed) and above (met, or past the end)."""
    if not tried:
        return 0
    if last and above == len(losses):
        return above - 1
    near = tried[below]
    other = (losses[above], tried[above]) if above in tried else max(
        ((losses[k], tried[k]) for k in tried if k != below), default=(0.0, 0.0), key=lambda p: -p[0])
    slope = (near - other[1]) / (losses[below] - other[0]) if losses[below] != other[0] else math.nan
    wanted = losses[below] - (near - _AIM * target) / slope if slope > 0 else -math.inf
    k = next((k for k, loss in enumerate(losses) if loss <= wanted), len(losses) - 1)
    return min(max(k, below + 1), above - 1)
