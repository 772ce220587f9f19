"""How sure a figure is: intervals from resampled windows, paired where two models read the same text.

A window is drawn with all that was measured on it, of both models, so that what makes a text hard or easy for both
cancels in ratios and differences. The percentile interval of few windows is too narrow; its level is widened as for
Student's t (Hesterberg, What Teachers Should Know About the Bootstrap, arXiv 1411.5279, section 5.3). Below six
windows it ends at the smallest and the largest, and holds the truth less often than it says (87 % with four).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from edgeforge.metrics import Totals, figures

LEVEL, _DRAWS, _SEED = 0.95, 2000, 7
Statistic = Callable[[Totals], Totals]
"""from totals [draws, k] to a figure of each, [draws]"""


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval. One window says nothing about another: low and high are NaN then."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """True of a difference that is no accident of these windows."""
        return self.low > 0 or self.high < 0


def estimate(windows: Totals, statistic: Statistic, level: float = LEVEL) -> Estimate:
    """The statistic of all windows together, and its interval.

    Args:
        windows: [n, k], what each window adds up to; n >= 1.
    """
    count = len(windows)
    value = float(statistic(windows.sum(0)[None])[0])
    if count < 2:
        return Estimate(value, math.nan, math.nan)
    # As counts of each window in each draw: the sums are one matrix product.
    drawn = np.random.default_rng(_SEED).multinomial(count, np.full(count, 1 / count), _DRAWS)
    with np.errstate(invalid="ignore"):
        totals = np.where(drawn[..., None] > 0, drawn[..., None] * windows, 0.0).sum(1)
    tail = _tail(count, level)
    low, high = np.quantile(statistic(totals), [tail, 1 - tail], method="inverted_cdf")
    return Estimate(value, float(low), float(high))


def compare(a: Totals, b: Totals, figure: str) -> Estimate:
    """How much larger a figure of `metrics.figures` is for a than for b, on the same windows.

    Args:
        a, b: [n, 10], the same windows in the same order, against the same reference.

    Raises:
        ValueError: other windows, as their number or length shows.
    """
    if a.shape != b.shape or not np.array_equal(a[:, -2:], b[:, -2:]):
        raise ValueError(f"a and b are not of the same windows: {a.shape}, {b.shape}")
    wide = a.shape[1]
    both = np.concatenate([a, b], axis=1)
    return estimate(both, lambda t: figures(t[:, :wide])[figure] - figures(t[:, wide:])[figure])


def _tail(count: int, level: float) -> float:
    """The share to leave out at each end: a normal's beyond sqrt(n / (n - 1)) times Student's quantile."""
    normal, free = NormalDist(), count - 1
    z = normal.inv_cdf((1 + level) / 2)
    # Abramowitz and Stegun 26.7.5
    t = (z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
         + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3))
    return normal.cdf(-math.sqrt(count / free) * t)
