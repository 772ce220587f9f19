"""Scales beside which the hardware's multiplier would vanish."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from quant_graphs import parse, run

from edgeforge import encodings
from edgeforge.encodings import Table
from edgeforge.errors import EdgeForgeError
from edgeforge.metrics import sqnr_db
from edgeforge.quantize import assign, floors, qdq
from edgeforge.quantize.weights.grid import per_channel
from edgeforge.targets import HTP


def test_a_channel_of_next_to_nothing_gets_a_scale_that_multiplies() -> None:
    """Case C32, as a newcomer met it: one column a millionth of the others saturated on the emulator."""
    w = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    w[:, 2] *= 1e-6
    model = parse("y = MatMul(x, w)", "float[1,8] x", "float[1,4] y", w=w)
    table = Table({"x": encodings.per_tensor(-1, 1, 16), "y": encodings.per_tensor(-4, 4, 16),
                   "w": per_channel(w, 1, 8)})
    made = floors.raised(model.graph, table, HTP.least_multiplier)
    multiplier = float(table["x"].scale) * made["w"].scale / float(table["y"].scale)
    assert multiplier.min() >= 2.0**-23 * (1 - 1e-6)
    others = [0, 1, 3]
    np.testing.assert_array_equal(made["w"].scale[others], table["w"].scale[others])
    lost = np.abs(made["w"].dequantize(made["w"].quantize(w)) - w)[:, 2].sum()
    assert lost < float(table["y"].scale)  # less than one code of the output, whatever x holds
    assert floors.raised(model.graph, table, 0.0)["w"] is table["w"]


@pytest.mark.parametrize(("body", "shape", "weight"), [
    ("y = Conv(x, w, b)", "1,8,1,4", (8, 8, 1, 1)), ("y = Conv<group = 8>(x, w, b)", "1,8,1,4", (8, 1, 1, 1)),
    ("y = ConvTranspose(x, w, b)", "1,8,1,4", (8, 8, 1, 1)), ("y = Gemm<transB = 1>(x, w, b)", "4,8", (8, 8)),
    ("y = LayerNormalization(x, w, b)", "4,8", (8,))])
def test_a_bias_that_its_grid_did_not_hold(body: str, shape: str, weight: tuple[int, ...], tmp_path: Path) -> None:
    """Small weights of 16 bits beside biases of 1 (for the norm, small inputs): 1 dB was left."""
    rng, small = np.random.default_rng(0), "Norm" in body
    w = (rng.normal(size=weight) * (1 if small else 0.02)).astype(np.float32)
    b = rng.normal(size=8).astype(np.float32) * (30 if small else 1)
    x = rng.uniform(-1, 1, [int(d) for d in shape.split(",")]).astype(np.float32) * (0.01 if small else 1)
    model = parse(body, f"float[{shape}] x", f"float[{shape}] y", w=w, b=b)
    y = run(model.clone(), tmp_path / "float", {"x": x})["y"]
    ends = {"x": (float(x.min()), float(x.max())), "y": (float(y.min()), float(y.max()))}
    table = assign.assign(model.graph, ends, assign.Grids(weights=16))

    def decibels(table: Table, folder: Path) -> float:
        codes = table["x"].quantize(x).astype(np.uint16)
        made = run(qdq.quantize(model.clone(), table), folder, {"x": codes})["y"]
        return sqnr_db(y, table["y"].dequantize(made))

    with pytest.raises(EdgeForgeError, match="b does not fit 32 bits on its product's grid"):
        decibels(table, tmp_path / "before")
    assert decibels(floors.raised(model.graph, table, HTP.least_multiplier), tmp_path / "after") > (50 if small else 70)


def test_a_depthwise_channel_of_next_to_nothing() -> None:
    """No search fits it, and the hardware multiplies by its scale all the same."""
    w = np.ones((4, 1, 3, 3), np.float32)
    w[2] *= 1e-9
    model = parse("y = Conv<group = 4, pads = [1, 1, 1, 1]>(x, w)", "float[1,4,8,8] x", "float[1,4,8,8] y", w=w)
    table = Table({"x": encodings.per_tensor(-1, 1, 16), "y": encodings.per_tensor(-9, 9, 16),
                   "w": per_channel(w, 0, 8)})
    made = floors.raised(model.graph, table, HTP.least_multiplier)["w"]
    assert float(table["x"].scale) * made.scale.min() / float(table["y"].scale) >= 2.0**-23 * (1 - 1e-6)
    np.testing.assert_array_equal(made.scale[[0, 1, 3]], table["w"].scale[[0, 1, 3]])
