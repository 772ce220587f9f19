"""Which values a table of a float16 model names: what 8 bits resolve, and no more."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from edgeforge.calibrate.histogram import Histogram
from edgeforge.encodings import Encoding
from edgeforge.graph import edit
from edgeforge.quantize import float16
from edgeforge.quantize.weights.grid import per_channel

W = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)


def _graph() -> ir.Graph:
    """x [1, 4, 16] -> Sigmoid -> Reshape -> MatMul by w, [8, 16] behind a Transpose."""
    model = ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["": 23]>
        g (float[1,4,16] x) => (float[4,8] y) <float[8,16] w = {W}, int64[2] shape = {4, 16}> {
            gate = Sigmoid(x)
            moved = Reshape(gate, shape)
            turned = Transpose<perm = [1, 0]>(w)
            y = MatMul(moved, turned)
        }""".replace("{W}", "{" + ", ".join(map(str, W.reshape(-1).tolist())) + "}"))
    edit.set_shape(next(v for n in model.graph for v in n.outputs if v.name == "moved"), [4, 16])
    for node in model.graph:
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    return model.graph


def _seen(*parts: npt.NDArray[np.float64]) -> dict[str, Histogram]:
    found = Histogram()
    for part in parts:
        found.see(part)
    return {"gate": found}


def _fitted(bits: int) -> dict[str, Encoding]:
    return {"w": per_channel(W, 0, bits, half=True)}


def test_what_is_watched_is_what_the_moves_come_from() -> None:
    assert float16.watched(_graph()) == ["gate"]


def test_an_even_value_is_read_as_codes_on_the_smallest_grid() -> None:
    usual = np.random.default_rng(1).normal(size=20000)
    made = float16.table(_graph(), _fitted(8), {}, _seen(usual))
    assert set(made) == {"w", "moved"}
    found = made["moved"]
    assert float(found.scale) == pytest.approx(np.abs(usual).max() / 127, rel=1e-3)
    assert found.scale == found.scale.astype(np.float16)
    assert float16.readers(_graph(), made) == (1, [])


def test_a_value_that_a_massive_one_drowns_is_read_as_float16() -> None:
    """SmolLM2's layer 11: 3,568 on the first token, where 99 % stay below 9. The step would be 28."""
    usual = np.random.default_rng(1).normal(size=20000)
    made = float16.table(_graph(), _fitted(8), {}, _seen(usual, np.array([3568.0])))
    assert set(made) == {"w"}
    assert float16.readers(_graph(), made) == (0, ["w"])


def test_4_bit_weights_read_no_codes() -> None:
    usual = np.random.default_rng(1).normal(size=20000)
    assert set(float16.table(_graph(), _fitted(4), {}, _seen(usual))) == {"w"}
    assert set(float16.table(_graph(), {}, {"w": 8}, {})) == {"w"}


def test_decibels_are_those_of_the_usual_values() -> None:
    rng = np.random.default_rng(2)
    seen = _seen(rng.uniform(-1, 1, 100000), np.full(50, 100.0))["gate"]
    step = 1 / 64
    assert float16.decibels(seen, step) == pytest.approx(10 * np.log10((1 / 3) / (step**2 / 12)), abs=0.7)


def test_floats_of_8_bits_are_read_where_whole_numbers_drown() -> None:
    """They lose 31.5 dB, from the 3 bits of mantissa, at every size."""
    usual = np.random.default_rng(1).normal(size=20000)
    seen = _seen(usual, np.array([3568.0]))
    made = float16.table(_graph(), {"w": per_channel(W, 0, 8, half=True, e4m3=True)}, {}, seen, fp8=True)
    grid = made["moved"]
    assert (grid.dtype, grid.scale.ndim) == ("float8e4m3fn", 0)
    assert float(grid.scale) == pytest.approx(3568 * 1.2 / 448, rel=1e-3)
    assert grid.scale == grid.scale.astype(np.float16)
    assert float16.readers(_graph(), made) == (1, [])
    lost = usual - grid.dequantize(grid.quantize(usual))
    assert 10 * np.log10((usual**2).sum() / (lost**2).sum()) == pytest.approx(31.5, abs=0.3)
    assert float16.table(_graph(), {}, {"w": 8}, {}, fp8=True)["w"].e4m3
