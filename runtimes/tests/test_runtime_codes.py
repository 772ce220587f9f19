from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from edgeforge_runtime.codes import decode, encode
from edgeforge_runtime.manifest import Tensor
from hypothesis import given
from hypothesis import strategies as st

U8 = Tensor("x", "uint8", (1,), 0.5, 10)


@pytest.mark.parametrize(
    ("tensor", "real", "code"),
    [
        (U8, 0.0, 10),
        (U8, 1.24, 12),
        (U8, 1.26, 13),
        (U8, -5.0, 0),
        (U8, -99.0, 0),
        (U8, 999.0, 255),
        (Tensor("x", "int8", (1,), 0.5, 0), -999.0, -128),
        (Tensor("m", "uint16", (1,), 50 / 65535, 65535), 0.0, 65535),
        (Tensor("m", "uint16", (1,), 50 / 65535, 65535), -50.0, 0),
        (Tensor("m", "uint16", (1,), 50 / 65535, 65535), -255.0, 0),
        (Tensor("x", "float16", (1,)), 0.5, 0.5),
    ],
)
def test_encode(tensor: Tensor, real: float, code: Any) -> None:
    made = encode(tensor, [real])
    assert made.dtype == np.dtype(tensor.dtype)
    assert made[0] == code


@pytest.mark.parametrize(
    ("real", "code"), [(1.0, 65535), (-1.0, 0), (0.0, 32768), (1e-5, 32768), (-1e-5, 32767)]
)
def test_rotary_tables_round_down(real: float, code: int) -> None:
    assert encode(Tensor("c", "uint16", (1,), 2 / 65535, 32768), [real], np.floor)[0] == code


@given(st.integers(0, 65535), st.integers(0, 65535), st.floats(1e-6, 10))
def test_decode_inverts_encode(code: int, zero: int, scale: float) -> None:
    tensor = Tensor("x", "uint16", (1,), scale, zero)
    real = decode(tensor, np.array([code], np.uint16))
    assert real.dtype == np.float32
    assert encode(tensor, real)[0] == code
