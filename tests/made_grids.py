"""Grids of weights for tests: the kinds that a build makes, by min-max, and those that only others' files hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from edgeforge.encoding import Encoding, input_axis
from edgeforge.quantize.weights import lpbq as whole
from edgeforge.quantize.weights.grid import Grid, encoding, minmax

Array = npt.NDArray[Any]


def lpbq(weight: Array, axis: int, block: int) -> Encoding:
    """As a build makes it without a search; axis: that of the outputs."""
    flat = np.ascontiguousarray(np.moveaxis(weight, axis, -1).reshape(-1, weight.shape[axis]), np.float32)
    grid = Grid(4, block, lpbq=True)
    steps = whole.rounded(minmax(torch.from_numpy(flat), grid), grid)
    return encoding(steps, axis, input_axis(weight.ndim, axis), weight.ndim)


def per_block(weight: Array, axis: int, block: int, symmetric: bool = True) -> Encoding:
    """4 bits, a float scale for each block of inputs along axis."""
    size = weight.shape[axis]
    blocks = weight.reshape(*weight.shape[:axis], size // block, block, *weight.shape[axis + 1:])
    return _made(blocks.min(axis + 1), blocks.max(axis + 1), 4, axis, block, symmetric)


def asymmetric(weight: Array, axis: int, bits: int) -> Encoding:
    """Unsigned codes with a zero point for each slice along axis."""
    others = tuple(a for a in range(weight.ndim) if a != axis)
    return _made(weight.min(others), weight.max(others), bits, axis, None, False)


def _made(low: Array, high: Array, bits: int, axis: int, block: int | None, symmetric: bool) -> Encoding:
    low, high, levels = np.minimum(low, 0), np.maximum(high, 0), (1 << bits) - 1
    if symmetric:
        scale = (np.maximum(-low, high) / (levels // 2)).astype(np.float32)
        return Encoding(bits, True, scale, np.zeros(scale.shape, np.int64), axis, block)
    scale = ((high - low) / levels).astype(np.float32)
    return Encoding(bits, False, scale, np.clip(np.rint(-low / scale), 0, levels).astype(np.int64), axis, block)
