"""Between real numbers and the codes of a graph's inputs and outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .manifest import Tensor

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


def encode(tensor: Tensor, real: npt.ArrayLike, to_integer: np.ufunc = np.rint) -> Array:
    """Real values of any shape on the tensor's grid, in its dtype.

    Args:
        to_integer: how real / scale + zero_point becomes a code, after which it saturates.
    """
    values = np.asarray(real, np.float64)
    dtype = np.dtype(tensor.dtype)
    if tensor.scale is None:
        return values.astype(dtype)
    limits = np.iinfo(dtype)
    codes: npt.NDArray[np.float64] = to_integer(values / np.float32(tensor.scale) + tensor.zero_point)
    return codes.clip(limits.min, limits.max).astype(dtype)


def decode(tensor: Tensor, codes: Array) -> Floats:
    """Codes of any shape as float32."""
    if tensor.scale is None:
        return codes.astype(np.float32)
    return (codes.astype(np.int32) - tensor.zero_point).astype(np.float32) * np.float32(tensor.scale)
