"""Sums over tokens: peaks by channel, and Gram matrices X'X."""

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


class Gram:
    """X'X of one value, X being [tokens, channels]."""

    def __init__(self) -> None:
        self.total: Floats | None = None

    def see(self, array: Floats) -> None:
        """Adds the rows of array, whose last axis is the channels."""
        rows = array.reshape(-1, array.shape[-1])
        if self.total is None:
            self.total = np.zeros((rows.shape[1], rows.shape[1]), np.float32)
        self.total += rows.T @ rows

    def matrix(self) -> Floats:
        """The sum so far; ValueError when nothing was seen."""
        if self.total is None:
            raise ValueError("nothing was seen")
        return self.total

    def principal(self) -> npt.NDArray[np.float64]:
        """The direction in which the rows are largest."""
        _, vectors = np.linalg.eigh(self.matrix().astype(np.float64))
        return vectors[:, -1]
