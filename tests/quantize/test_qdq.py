"""The printed QDQ graph against numpy, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from made_grids import lpbq, per_block
from quant_graphs import adapted, parse, prefill, run

from edgeforge import encodings
from edgeforge.calibrate import observe
from edgeforge.encodings import Encoding, Table
from edgeforge.errors import EdgeForgeError
from edgeforge.graph import edit, requantize
from edgeforge.quantize import assign, qdq
from edgeforge.quantize.weights.grid import per_channel


def exact(bits: int, signed: bool, exponent: int, zero: int = 0) -> Encoding:
    """A grid whose step is a power of two, so that sums of a few products are exact in float32."""
    return Encoding(bits, signed, np.array(2.0**exponent, np.float32), np.array(zero))


def test_pointwise_ops_and_a_change_of_grid(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    model = parse("s = Sigmoid(x) m = Mul(x, s) a = Add(m, y) n = Identity(a) t = Transpose<perm = [1, 0]>(n)",
                  "float[3, 4] x, float[3, 4] y", "float[4, 3] t")
    node = next(n for n in model.graph if n.op_type == "Identity")
    node.metadata_props[requantize.ROLE] = requantize.REQUANTIZE
    ranges = {"x": (-3.0, 5.0), "y": (-1.0, 1.0), "s": (0.0, 1.0), "m": (-1.0, 5.0), "a": (-2.0, 6.0)}
    table = Table({k: encodings.per_tensor(*r, 16) for k, r in ranges.items()} | dict.fromkeys(
        ("n", "t"), encodings.per_tensor(-2, 6, 8, symmetric=True)))
    codes = {k: rng.integers(0, 65536, (3, 4)).astype(np.uint16) for k in "xy"}
    made = run(qdq.quantize(model, table), tmp_path, codes)["t"]
    x, y = (table[k].dequantize(codes[k]) for k in "xy")

    def on(name: str, real: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        return table[name].dequantize(table[name].quantize(real))

    s = on("s", np.float32(1) / (np.float32(1) + np.exp(-x)))
    a = on("a", on("m", x * s) + y)
    assert made.dtype == np.uint8
    np.testing.assert_array_equal(made, table["n"].quantize(a).T)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_projection_with_bias(bits: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    w = rng.normal(size=(5, 6, 1, 1)).astype(np.float32)
    bias = rng.normal(size=5).astype(np.float32)
    model = parse("y = Conv(x, w, b)", "float[1, 6, 1, 3] x", "float[1, 5, 1, 3] y", w=w, b=bias)
    scales = (2.0 ** -np.arange(3, 8)).astype(np.float32)
    table = Table({"x": exact(16, False, -8, 512), "w": Encoding(bits, True, scales, np.zeros(5, np.int64), 0),
                   "y": exact(16, False, -6, 30000)})
    x = rng.integers(0, 1024, (1, 6, 1, 3)).astype(np.uint16)
    printed = qdq.quantize(model, table)
    made = run(printed, tmp_path, {"x": x})["y"]
    real = table["w"].dequantize(table["w"].quantize(w))[:, :, 0, 0]
    step = np.float32(2**-8) * scales
    total = real @ table["x"].dequantize(x)[0, :, 0] + (np.rint(bias / step) * step)[:, None]
    np.testing.assert_array_equal(made[0, :, 0], table["y"].quantize(total))
    stored = edit.constant(printed.graph.initializers["w"])
    assert stored is not None
    assert stored.dtype == (ml_dtypes.int4 if bits == 4 else np.int8)
    np.testing.assert_array_equal(stored.astype(np.int64), table["w"].quantize(w))


def test_four_bit_codes_of_an_odd_count_survive_the_disk(tmp_path: Path) -> None:
    """Two to a byte: the last one of 15 has no neighbour."""
    w = (np.arange(15, dtype=np.float32) - 8).reshape(3, 5, 1, 1)
    model = parse("y = Conv(x, w)", "float[1, 5, 1, 1] x", "float[1, 3, 1, 1] y", w=w)
    grid = Encoding(4, True, np.ones(3, np.float32), np.zeros(3, np.int64), 0)
    table = Table({"x": exact(16, False, 0), "w": grid, "y": exact(16, False, 0, 30000)})
    printed = qdq.quantize(model, table)
    for channel in range(5):
        x = np.zeros((1, 5, 1, 1), np.uint16)
        x[0, channel] = 1
        made = run(printed.clone(), tmp_path / str(channel), {"x": x})["y"]
        np.testing.assert_array_equal(made.reshape(3).astype(int) - 30000, w[:, channel, 0, 0])


def test_a_weight_in_blocks(tmp_path: Path) -> None:
    """LPBQ: the printed block scales are integer x float, and onnxruntime reads them as we do."""
    rng = np.random.default_rng(2)
    w = rng.normal(size=(3, 8, 1, 1)).astype(np.float32)
    channel = (2.0 ** -np.arange(5, 8)).astype(np.float32)
    blocks = rng.integers(1, 17, (3, 2, 1, 1))
    blocks[:, 0] = 16
    grid = Encoding(4, True, channel, np.zeros((3, 2, 1, 1), np.int64), 1, 4, blocks, 0)
    model = parse("y = Conv(x, w)", "float[1, 8, 1, 2] x", "float[1, 3, 1, 2] y", w=w)
    table = Table({"x": exact(16, False, -4, 64), "w": grid, "y": exact(16, False, -6, 30000)})
    printed = qdq.quantize(model, table)
    node = next(n for n in printed.graph if n.outputs[0].name == "w/dq")
    assert (node.attributes["axis"].as_int(), node.attributes["block_size"].as_int()) == (1, 4)
    x = rng.integers(0, 128, (1, 8, 1, 2)).astype(np.uint16)
    made = run(printed, tmp_path, {"x": x})["y"]
    real = grid.dequantize(grid.quantize(w))[:, :, 0, 0]
    np.testing.assert_array_equal(
        real, grid.quantize(w)[:, :, 0, 0] * (blocks[:, :, 0, 0] * channel[:, None]).repeat(4, 1))
    np.testing.assert_array_equal(made[0, :, 0], table["y"].quantize(real @ table["x"].dequantize(x)[0, :, 0]))


def test_a_bias_beside_blocks(tmp_path: Path) -> None:
    """It lives on the channel's scale, the finest of its blocks'."""
    rng = np.random.default_rng(3)
    w, bias = rng.normal(size=(3, 8, 1, 1)).astype(np.float32), np.array([2, -3, 0.5], np.float32)
    model = parse("y = Conv(x, w, b)", "float[1, 8, 1, 2] x", "float[1, 3, 1, 2] y", w=w, b=bias)
    table = Table({"x": exact(16, False, -4, 64), "w": lpbq(w, 0, 4), "y": exact(16, False, -6, 30000)})
    printed = qdq.quantize(model.clone(), table)
    codes = edit.constant(printed.graph.initializers["b"])
    assert codes is not None
    step = np.float32(2**-4) * table["w"].scale
    np.testing.assert_array_equal(codes, np.rint(bias / step))
    x = rng.integers(0, 128, (1, 8, 1, 2)).astype(np.uint16)
    real = table["w"].dequantize(table["w"].quantize(w))[:, :, 0, 0] @ table["x"].dequantize(x)[0, :, 0]
    made = run(printed, tmp_path, {"x": x})["y"].astype(int)
    assert np.abs(made[0, :, 0] - table["y"].quantize(real + bias[:, None])).max() <= 1
    floats = per_block(w, 1, 4)
    with pytest.raises(EdgeForgeError, match="w: blocks with float scales leave its product's bias without a grid"):
        qdq.quantize(model, Table({**table, "w": floats}))


def test_a_decoder_keeps_its_names_and_has_integers_at_its_edges(tmp_path: Path) -> None:
    made, model = adapted("llama")
    model = model.clone()
    feeds = prefill(made)
    ranges = {str(v.name): (-20.0, 20.0) for v in observe.sources(model.graph)}
    ranges |= {"position_ids_cos": (-1.0, 1.0), "position_ids_sin": (-1.0, 1.0), "attention_mask": (-50.0, 0.0)}
    table = assign.assign(model.graph, ranges, assign.Grids())
    inputs = [v.name for v in model.graph.inputs]
    outputs = [v.name for v in model.graph.outputs]
    printed = qdq.quantize(model, table)
    assert [v.name for v in printed.graph.inputs] == inputs
    assert [v.name for v in printed.graph.outputs] == outputs
    kinds = {v.dtype for v in (*printed.graph.inputs, *printed.graph.outputs)}
    assert kinds == {ir.DataType.INT32, ir.DataType.UINT16, ir.DataType.UINT8}
    codes = {n: f if n == "input_ids" else table[n].quantize(f).astype(table[n].dtype) for n, f in feeds.items()}
    assert int(codes["attention_mask"].max()) == 65535
    found = run(printed, tmp_path, codes)
    assert {str(v.dtype) for v in found.values()} == {"uint16", "uint8"}


def test_an_old_opset_is_refused() -> None:
    model = parse("y = Sigmoid(x)", "float[2] x", "float[2] y")
    model.graph.opset_imports[""] = 17
    with pytest.raises(EdgeForgeError, match="opset 23"):
        qdq.quantize(model, Table())


def test_a_bias_that_is_computed_is_refused() -> None:
    model = parse("b = Tanh(c) y = Conv(x, w, b)", "float[1, 2, 1, 1] x, float[2] c", "float[1, 2, 1, 1] y",
                  w=np.ones((2, 2, 1, 1), np.float32))
    table = Table(dict.fromkeys("xcby", encodings.per_tensor(-1, 1, 16)) | {
        "w": per_channel(np.ones((2, 2, 1, 1)), 0, 8)})
    with pytest.raises(EdgeForgeError, match="not constant"):
        qdq.quantize(model, table)
