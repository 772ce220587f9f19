"""How often values of each size were seen, in one pass: the range doubles when a value falls outside."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

FILE = "histograms.npz"
BINS = 2048
_LEAST = 2.0**-60


class Histogram:
    """Counts in BINS equal bins over [-limit, limit), limit a power of two, so that two bins merge into one exactly.

    What is not finite isn't counted: a range that isn't finite is an error of its own.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(BINS, np.int64)
        self.limit = 0.0
        self.range = (math.inf, -math.inf)
        """smallest and largest value"""

    @property
    def width(self) -> float:
        """Of a bin."""
        return 2 * self.limit / BINS

    @property
    def centres(self) -> npt.NDArray[np.float64]:
        return np.asarray((np.arange(BINS) - BINS // 2 + 0.5) * self.width, np.float64)

    def see(self, array: npt.NDArray[np.floating]) -> None:
        values = np.asarray(array, np.float64).reshape(-1)
        values = values[np.isfinite(values)]
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        self.range = min(low, self.range[0]), max(high, self.range[1])
        self._reach(max(-low, high))
        index = np.floor(values / self.width).astype(np.int64) + BINS // 2
        self.counts += np.bincount(index, minlength=BINS)

    def _reach(self, peak: float) -> None:
        """Doubles the range until peak lies inside."""
        wanted = max(math.ldexp(1.0, math.frexp(peak)[1]), _LEAST) if peak > 0 else _LEAST
        if not self.counts.any():
            self.limit = max(self.limit, wanted)
        while self.limit < wanted:
            merged = np.zeros(BINS, np.int64)
            merged[BINS // 4:3 * BINS // 4] = self.counts.reshape(-1, 2).sum(1)
            self.counts, self.limit = merged, 2 * self.limit

    def quantile(self, share: float) -> float:
        """The value that `share` of all lie below, to within a bin and the range; ValueError when nothing was seen."""
        totals = np.cumsum(self.counts)
        if not totals[-1]:
            raise ValueError("nothing was seen")
        wanted = share * totals[-1]
        index = min(int(np.searchsorted(totals, wanted)), BINS - 1)
        before = totals[index - 1] if index else 0
        inside = (wanted - before) / max(self.counts[index], 1)
        value = (index - BINS // 2 + min(max(inside, 0.0), 1.0)) * self.width
        return float(min(max(value, self.range[0]), self.range[1]))


def save(folder: Path, found: Mapping[str, Histogram]) -> None:
    """Writes histograms.npz: counts [values, bins], limit, smallest and largest [values, 3], and the values' names."""
    names = sorted(found)
    ends = np.array([(found[n].limit, *found[n].range) for n in names], np.float64).reshape(-1, 3)
    counts = np.array([found[n].counts for n in names], np.int64).reshape(-1, BINS)
    np.savez(folder / FILE, names=np.array(names, np.str_), counts=counts, ends=ends)


def load(folder: Path) -> dict[str, Histogram]:
    made: dict[str, Histogram] = {}
    with np.load(folder / FILE) as arrays:
        for name, counts, (limit, low, high) in zip(*(arrays[k] for k in ("names", "counts", "ends")), strict=True):
            made[str(name)] = one = Histogram()
            one.counts, one.limit, one.range = counts, float(limit), (float(low), float(high))
    return made
