"""Error-compensated rounding against rounding to nearest, on its own loss."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quant_graphs import parse

from edgeforge import encodings
from edgeforge.encodings import Encoding, Table
from edgeforge.graph import edit
from edgeforge.quantize import gptq

Array = npt.NDArray[np.floating]


def inputs(rng: np.random.Generator, channels: int, rank: int) -> Array:
    """Correlated inputs: a few common causes and a little noise of each channel's own."""
    return rng.normal(size=(400, rank)) @ rng.normal(size=(rank, channels)) + 0.1 * rng.normal(size=(400, channels))


def loss(w: Array, v: Array, gram: Array) -> float:
    return float(np.einsum("ij,jk,ik->", w - v, gram, w - v))


def rounded(w: npt.NDArray[np.float32], grid: Encoding, gram: Array) -> npt.NDArray[np.float32]:
    codes = gptq.codes(w, grid.scale, grid.low, grid.high, gptq.Factor(gram))
    assert (codes == np.rint(codes)).all()
    assert grid.low <= codes.min() <= codes.max() <= grid.high
    return codes * grid.scale[:, None]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), bits=st.sampled_from([4, 8]), channels=st.sampled_from([5, 64, 130]))
def test_correlated_inputs_gain(seed: int, bits: int, channels: int) -> None:
    rng = np.random.default_rng(seed)
    x = inputs(rng, channels, max(2, channels // 8))
    w = rng.normal(size=(16, channels)).astype(np.float32)
    grid = encodings.per_channel(w, 0, bits)
    nearest = grid.dequantize(grid.quantize(w))
    gram = x.T @ x
    assert loss(w, rounded(w, grid, gram), gram) < 0.7 * loss(w, nearest, gram)


@pytest.mark.parametrize("block", [16, 64])
def test_correlated_inputs_gain_in_blocks(block: int) -> None:
    """The codes lie on the table's grid: rounding the new weight to nearest changes nothing."""
    rng = np.random.default_rng(7)
    w = (rng.normal(size=(16, 128)) * rng.uniform(0.1, 3, (16, 2)).repeat(64, 1)).astype(np.float32)
    model = parse("y = Conv(x, w)", "float[1,128,1,8] x", "float[1,16,1,8] y", w=w[..., None, None])
    table = Table({"w": encodings.lpbq(w[..., None, None], 0, block)})
    x = inputs(rng, 128, 12)
    gram = x.T @ x
    assert gptq.round_weights(model, table, {"x": gram}) == 1
    made = edit.constant(model.graph.initializers["w"])
    assert made is not None
    again, nearest = (table["w"].dequantize(table["w"].quantize(v)) for v in (made, w[..., None, None]))
    np.testing.assert_array_equal(again, made)
    assert loss(w, made[:, :, 0, 0], gram) < 0.7 * loss(w, nearest[:, :, 0, 0], gram)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_linear_with_one_output(bits: int) -> None:
    """Case C13: a gate of one channel; elsewhere 4-bit packing left it an empty table of zero points."""
    rng = np.random.default_rng(4)
    model = parse("y = Conv(x, w)", "float[1,64,1,8] x", "float[1,1,1,8] y",
                  w=rng.normal(size=(1, 64, 1, 1)).astype(np.float32))
    weight = edit.constant(model.graph.initializers["w"])
    assert weight is not None
    table = Table()
    table.set("w", encodings.per_channel(weight, 0, bits))
    x = inputs(rng, 64, 6)
    assert gptq.round_weights(model, table, {"x": x.T @ x}) == 1
    grid, made = table["w"], edit.constant(model.graph.initializers["w"])
    assert made is not None
    assert grid.scale.shape == (1,)
    np.testing.assert_allclose(made, grid.dequantize(grid.quantize(made)), rtol=1e-6)
    assert loss(weight.reshape(1, 64), made.reshape(1, 64), x.T @ x) < np.sum((x @ weight.reshape(64)) ** 2) / 10


def test_independent_channels_are_rounded_to_nearest() -> None:
    rng = np.random.default_rng(1)
    w = rng.normal(size=(8, 70)).astype(np.float32)
    grid = encodings.per_channel(w, 0, 8)
    made = rounded(w, grid, np.diag(rng.uniform(0.1, 9, 70)))
    np.testing.assert_array_equal(grid.quantize(made), grid.quantize(w))


def test_silent_channels_and_silence_are_rounded_to_nearest() -> None:
    rng = np.random.default_rng(2)
    x = inputs(rng, 12, 3)
    x[:, [0, 7]] = 0
    w = rng.normal(size=(4, 12)).astype(np.float32)
    grid = encodings.per_channel(w, 0, 8)
    made = grid.quantize(rounded(w, grid, x.T @ x))
    np.testing.assert_array_equal(made[:, [0, 7]], grid.quantize(w)[:, [0, 7]])
    silent = grid.quantize(rounded(w, grid, np.zeros((12, 12))))
    np.testing.assert_array_equal(silent, grid.quantize(w))


def test_the_order_and_the_factor_are_those_of_the_definition() -> None:
    rng = np.random.default_rng(3)
    x = inputs(rng, 20, 4) * rng.uniform(0.1, 3, 20)
    gram = x.T @ x
    factor = gptq.Factor(gram)
    assert (np.diff(gram.diagonal()[factor.order]) <= 0).all()
    damped = gram + gptq.DAMP * np.diag(gram.diagonal())
    expected = np.linalg.inv(damped)[np.ix_(factor.order, factor.order)]
    np.testing.assert_allclose(factor.upper.T.astype(float) @ factor.upper, expected, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(np.tril(factor.upper, -1), 0, atol=1e-12)


def test_many_rows_are_treated_as_few(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    x, w = inputs(rng, 10, 3), rng.normal(size=(9, 10, 1, 1)).astype(np.float32)
    whole = _round_model(w, x)
    monkeypatch.setattr(gptq, "_ROWS", 4)
    np.testing.assert_array_equal(_round_model(w, x), whole)


def test_the_models_weights_come_to_lie_on_the_tables_grid() -> None:
    rng = np.random.default_rng(5)
    x, w = inputs(rng, 10, 3), rng.normal(size=(9, 10, 1, 1)).astype(np.float32)
    grid = encodings.per_channel(w, 0, 8)
    made = _round_model(w, x)
    assert made.dtype == np.float32
    np.testing.assert_array_equal(grid.dequantize(grid.quantize(made)), made)
    assert (grid.quantize(made) != grid.quantize(w)).any()
    # A head's slice has the whole's codes: what MHA -> SHA relies on.
    part = grid.take(0, 3, 6)
    np.testing.assert_array_equal(part.quantize(made[3:6]), grid.quantize(made)[3:6])


def test_a_weight_without_gram_stays_as_it_is() -> None:
    model = _model(np.ones((2, 3, 1, 1), np.float32))
    assert gptq.round_weights(model, Table(), {}) == 0


def _model(w: npt.NDArray[np.float32]) -> ir.Model:
    return parse("y = Conv(x, w)", f"float[1, {w.shape[1]}, 1, s] x", f"float[1, {len(w)}, 1, s] y", w=w)


def _round_model(w: npt.NDArray[np.float32], x: Array) -> npt.NDArray[np.float32]:
    model = _model(w)
    table = Table({"w": encodings.per_channel(w, 0, 8)})
    assert gptq.round_weights(model, table, {"x": (x.T @ x).astype(np.float32)}) == 1
    made = edit.constant(model.graph.initializers["w"])
    assert made is not None
    assert made.shape == w.shape
    return made
