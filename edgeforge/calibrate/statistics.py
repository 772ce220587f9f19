"""Sums over tokens: peaks by channel, and the direction in which a value is largest."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class Peaks:
    """Largest magnitude by channel, over everything seen.

    Args:
        kept: the axes that stay, by value name; all others are reduced.
    """

    def __init__(self, kept: Mapping[str, tuple[int, ...]]) -> None:
        self._kept = dict(kept)
        self.seen: dict[str, Floats] = {}

    def see(self, name: str, array: Floats) -> None:
        others = tuple(a for a in range(array.ndim) if a not in self._kept[name])
        peak = np.maximum(array.max(others), -array.min(others))
        self.seen[name] = np.maximum(self.seen[name], peak) if name in self.seen else peak


class Direction:
    """The strongest direction of one value: that of X'X, X being [tokens, channels]."""

    _ROWS = 512
    """tokens that are gathered before they are multiplied: a large matrix takes longer to add than to make"""

    def __init__(self) -> None:
        self._total: Floats | None = None
        self._rows: list[Floats] = []

    def see(self, array: Floats) -> None:
        """Adds the rows of array, whose last axis is the channels."""
        # Copied, for the caller's array may be a view of a much larger one.
        self._rows.append(np.array(array.reshape(-1, array.shape[-1]), order="C"))
        if sum(map(len, self._rows)) >= self._ROWS:
            self._fold()

    def matrix(self) -> Floats:
        """The sum so far; ValueError when nothing was seen."""
        self._fold()
        if self._total is None:
            raise ValueError("nothing was seen")
        return self._total

    def _fold(self) -> None:
        if self._rows:
            rows = np.concatenate(self._rows)
            self._rows = []
            product = rows.T @ rows
            self._total = product if self._total is None else np.add(self._total, product, out=self._total)

    def principal(self) -> npt.NDArray[np.float64]:
        """The direction in which the rows are largest."""
        _, vectors = np.linalg.eigh(self.matrix().astype(np.float64))
        return vectors[:, -1]
