"""E4M3: the float of 8 bits that GPUs multiply by. FP8 Formats for Deep Learning, arXiv 2209.05433; ONNX FLOAT8E4M3FN.

4 bits of exponent, 3 of mantissa: 448 is the largest, 2^-6 the smallest of full precision, 2^-9 the smallest step.
There is no infinity, so what lies beyond 448 becomes 448.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

NAME = "float8e4m3fn"
"""ONNX's name in small letters"""
MOST = 448.0

Floats = npt.NDArray[np.float32]


def codes(reals: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
    """The bit patterns, 0 to 255, of the nearest numbers; of two, the even one, as ONNX QuantizeLinear rounds."""
    clipped = np.clip(np.asarray(reals, np.float32), -MOST, MOST)
    return clipped.astype(ml_dtypes.float8_e4m3fn).view(np.uint8).astype(np.int64)


def reals(codes: npt.NDArray[np.integer]) -> Floats:
    """What bit patterns stand for."""
    found: Floats = stored(codes).astype(np.float32)
    return found


def stored(codes: npt.NDArray[np.integer]) -> npt.NDArray[Any]:
    """Bit patterns as an array of that type."""
    found: npt.NDArray[Any] = np.asarray(codes).astype(np.uint8).view(ml_dtypes.float8_e4m3fn)
    return found
