"""E4M3 as a grid: numpy, torch, onnxruntime and our searches mean the same numbers by it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgeforge import float8
from edgeforge.encoding import Encoding, check
from edgeforge.encodings import Table, equal
from edgeforge.errors import EdgeForgeError
from edgeforge.export import aimet, aimet_file
from edgeforge.graph import store
from edgeforge.quantize import qdq
from edgeforge.quantize.quality import PRESETS
from edgeforge.quantize.weights.fit import fit
from edgeforge.quantize.weights.gram import Gram
from edgeforge.quantize.weights.grid import Grid, encoding, per_channel

NUMBERS = np.array([0, 1, 1.125, -1.875, 448, -448, 2**-6, 2**-9, 240, 0.875 * 2**-6], np.float32)
"""all of them E4M3: powers of two, the largest, the smallest of full precision, subnormals"""


def _grid(scale: float | np.ndarray, axis: int | None = None) -> Encoding:
    steps = np.asarray(scale, np.float32)
    return Encoding(8, True, steps, np.zeros(steps.shape, np.int64), axis, e4m3=True)


def test_its_numbers_are_those_of_the_paper() -> None:
    """arXiv 2209.05433, table 1: S.1111.110 is 448, S.0000.001 is 2^-9, S.1111.111 is NaN; -0 is a number too."""
    np.testing.assert_array_equal(float8.reals(float8.codes(NUMBERS)), NUMBERS)
    assert float8.codes(np.array([448, 2**-9, 2**-6, 1, -1], np.float32)).tolist() == [0x7E, 1, 8, 0x38, 0xB8]
    every = float8.reals(np.arange(256))
    assert np.flatnonzero(np.isnan(every)).tolist() == [0x7F, 0xFF]
    assert len(np.unique(every[np.isfinite(every)])) == 253
    assert not {0x7F, 0xFF} & set(float8.codes(np.array([1e9, -1e9, 464, -465], np.float32)).tolist())


@settings(max_examples=60, deadline=None)
@given(arrays.arrays(np.float32, 40, elements=st.floats(-1000, 1000, width=32)), st.floats(2**-10, 8, width=16))
def test_rounding_is_to_the_nearest_and_torch_agrees(values: np.ndarray, scale: float) -> None:
    grid = _grid(scale)
    found = grid.dequantize(grid.quantize(values))
    every = float8.reals(np.arange(256))
    known = every[np.isfinite(every)] * np.float32(scale)
    best = np.abs(values[:, None].astype(np.float64) - known).min(1)
    np.testing.assert_allclose(np.abs(values - found.astype(np.float64)), best, rtol=1e-4, atol=1e-7 * scale)
    ours = Grid(8, e4m3=True).round_(torch.from_numpy(values / np.float32(scale)))
    np.testing.assert_array_equal(ours.numpy() * np.float32(scale), found)


@given(arrays.arrays(np.int64, (4, 8), elements=st.integers(0, 255).filter(lambda c: c & 0x7F != 0x7F)),
       st.floats(2**-14, 8, width=16))
def test_what_lies_on_the_grid_keeps_its_code(codes: np.ndarray, scale: float) -> None:
    """What a backend rounds to nearest is what was fitted."""
    grid = _grid(scale)
    np.testing.assert_array_equal(grid.quantize(grid.dequantize(codes)), codes)


def test_a_table_keeps_it_and_refuses_what_it_cannot_be(tmp_path: Path) -> None:
    made = {"w": _grid(np.array([0.5, 0.25]), 0), "x": _grid(0.1), "i": Encoding(8, True, np.float32(1), np.int64(0))}
    made["i"] = Encoding(8, True, np.array(1, np.float32), np.array(0))
    Table(made).save(tmp_path / "t.json")
    read = Table.load(tmp_path / "t.json")
    assert all(equal(read[n], e) for n, e in made.items())
    assert [read[n].dtype for n in "wxi"] == ["float8e4m3fn", "float8e4m3fn", "int8"]
    assert not equal(read["i"], Encoding(8, True, read["i"].scale, read["i"].zero_point, e4m3=True))
    for bits, zero in ((4, 0), (8, 3)):
        with pytest.raises(ValueError, match="E4M3 is signed, has 8 bits, and no zero point"):
            check(Encoding(bits, True, np.array(1, np.float32), np.array(zero), e4m3=True))
    text = (tmp_path / "t.json").read_text(encoding="utf-8")
    (tmp_path / "t.json").write_text(text.replace('"e4m3": true', '"e4m3": 1'), encoding="utf-8")
    with pytest.raises(EdgeForgeError, match="e4m3 is 1"):
        Table.load(tmp_path / "t.json")


def test_the_printed_graph_runs_and_means_the_table(tmp_path: Path) -> None:
    """y = (x on its grid) @ (w on its grid)', by onnxruntime."""
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(6, 16)).astype(np.float32), (rng.normal(size=(3, 16)) * 40).astype(np.float32)
    model = ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["": 23]>
        g (float[3,16] x) => (float[3,6] y) <float[6,16] w = {W}> {
            moved = Identity(x)
            turned = Transpose<perm = [1, 0]>(w)
            y = MatMul(moved, turned)
        }""".replace("{W}", "{" + ", ".join(map(str, w.reshape(-1).tolist())) + "}"))
    for node in model.graph:
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    model.graph[0].outputs[0].shape = ir.Shape([3, 16])
    weight, read = per_channel(w, 0, 8, half=True, e4m3=True), _grid(0.25)
    store.save(qdq.quantize(model, Table({"w": weight, "moved": read}), "float16"), tmp_path)
    stored = store.load(tmp_path).graph.initializers["w"]
    assert stored.dtype == ir.DataType.FLOAT8E4M3FN
    made = ort.InferenceSession(tmp_path / "model.onnx").run(None, {"x": x})[0]
    expected = read.dequantize(read.quantize(x)) @ weight.dequantize(weight.quantize(w)).T
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-4)
    assert np.abs(expected - x @ w.T).max() > 0.1, "it rounds at all"


def test_the_searches_gain_on_floats_too() -> None:
    """Steps by search, GPTQ and refinement lower the outputs' error, and their codes are E4M3."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(512, 64, generator=generator) * torch.logspace(-1, 1, 64)
    weight = torch.randn(64, 24, generator=generator) * 0.02
    x[:, 1:] += x[:, :-1]
    gram, losses = Gram(x.T @ x), {}
    for name in ("fast", "balanced"):
        fitted = fit(weight, gram, Grid(8, half=True, e4m3=True), PRESETS[name])
        assert torch.equal(fitted.codes, fitted.codes.to(torch.float8_e4m3fn).float())
        assert fitted.small().codes.element_size() == 1
        assert torch.equal(fitted.small().reals, fitted.reals)
        losses[name] = float((x @ (weight - fitted.reals)).square().sum())
        kept = encoding(fitted.steps, 0, 1, 2)
        array = fitted.reals.T.numpy()
        np.testing.assert_array_equal(kept.dequantize(kept.quantize(array)), array)
    widest = per_channel(weight.T.numpy(), 0, 8, half=True, e4m3=True)
    plain = torch.from_numpy(widest.dequantize(widest.quantize(weight.T.numpy()))).T
    assert losses["balanced"] < 0.7 * losses["fast"]
    assert losses["fast"] <= float((x @ (weight - plain)).square().sum())


@pytest.mark.parametrize("version", aimet.VERSIONS)
def test_other_tools_are_told_that_it_is_no_integer(version: aimet.Version, tmp_path: Path) -> None:
    aimet.write(tmp_path / "e.json", Table({"w": _grid(0.5)}), ["w"], "test", version)
    with pytest.raises(EdgeForgeError, match="float"):
        aimet_file.entries(tmp_path / "e.json")
