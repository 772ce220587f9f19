"""Between real numbers and the codes of a graph's inputs and outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .manifest import Tensor

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


def encode(tensor: Tensor, real: npt.ArrayLike) -> Array:
    """Real values of any shape on the tensor's grid (nearest, ties to even, saturating), in its dtype."""
    values = np.asarray(real, np.float32)
    dtype = np.dtype(tensor.dtype)
    if tensor.scale is None:
        return values.astype(dtype)
    limits = np.iinfo(dtype)
    codes = np.rint(values / np.float32(tensor.scale)) + tensor.zero_point
    saturated: Floats = np.clip(codes, limits.min, limits.max)
    return saturated.astype(dtype)


def decode(tensor: Tensor, codes: Array) -> Floats:
    """Codes of any shape as float32."""
    if tensor.scale is None:
        return codes.astype(np.float32)
    return (codes.astype(np.int32) - tensor.zero_point).astype(np.float32) * np.float32(tensor.scale)
