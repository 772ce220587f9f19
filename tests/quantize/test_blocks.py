"""Blocks: slices of grids are grids of slices, constructors round as they say, and the whole numbers stay whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_grids import lpbq
from quant_graphs import parse

from edgeforge import encodings
from edgeforge.encoding import expansion
from edgeforge.encodings import Encoding, Table
from edgeforge.errors import EdgeForgeError
from edgeforge.metrics import sqnr_db
from edgeforge.quantize import qdq
from edgeforge.quantize.weights.grid import per_channel

Array = npt.NDArray[Any]
SHAPE, BLOCK = (6, 8, 2), 4


@st.composite
def blocked(draw: st.DrawFn) -> tuple[Encoding, Array]:
    """Any kind of grid over a [6, 8, 2] tensor, and codes on it."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    axis = draw(st.integers(0, 1))
    shape = [d // (2 if a == axis else 1) for a, d in enumerate(SHAPE)]
    block = SHAPE[axis] // shape[axis]
    zero = rng.integers(-8, 8, shape)
    kind = draw(st.sampled_from(["lpbq", "block", "channel", "tensor"]))
    if kind == "lpbq":
        channel = draw(st.sampled_from([a for a in range(3) if a != axis]))
        scale = rng.uniform(0.01, 1, SHAPE[channel]).astype(np.float32)
        made = Encoding(4, True, scale, zero, axis, block, rng.integers(1, 17, shape), channel)
    elif kind == "block":
        made = Encoding(4, True, rng.uniform(0.01, 1, shape).astype(np.float32), zero, axis, block)
    elif kind == "channel":
        scale = rng.uniform(0.01, 1, SHAPE[axis]).astype(np.float32)
        made = Encoding(4, True, scale, rng.integers(-8, 8, SHAPE[axis]), axis)
    else:
        made = Encoding(4, True, np.array(0.5, np.float32), np.array(3))
    return made, rng.integers(-8, 8, SHAPE)


@settings(max_examples=200, deadline=None)
@given(pair=blocked(), axis=st.integers(0, 2), data=st.data())
def test_a_slice_means_what_it_meant_in_the_whole(pair: tuple[Encoding, Array], axis: int, data: st.DataObject) -> None:
    whole, codes = pair
    unit = whole.block if whole.block is not None and axis == whole.axis else 1
    start = data.draw(st.integers(0, SHAPE[axis] // unit - 1)) * unit
    stop = data.draw(st.integers(start // unit + 1, SHAPE[axis] // unit)) * unit
    part = whole.take(axis, start, stop)
    picked = codes.take(range(start, stop), axis)
    np.testing.assert_array_equal(part.dequantize(picked), whole.dequantize(codes).take(range(start, stop), axis))
    np.testing.assert_array_equal(part.quantize(part.dequantize(picked)), picked)


@settings(max_examples=100, deadline=None)
@given(pair=blocked())
def test_every_kind_survives_the_disk(pair: tuple[Encoding, Array], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("table") / "table.json"
    Table({"w": pair[0]}).save(path)
    assert encodings.equal(Table.load(path)["w"], pair[0])


def test_a_cut_through_a_block_names_tensor_axis_and_block() -> None:
    made = lpbq(np.ones((3, 64)), 0, 32)
    with pytest.raises(EdgeForgeError, match=r"^w: elements 16 to 64 of axis 1 cut through a block of 32") as caught:
        Table({"w": made}).take("w", 1, 16, 64)
    assert "quantize.block" in caught.value.hint
    assert Table({"w": made}).take("other", 1, 16, 64) is None


@pytest.mark.parametrize("block", [16, 32, 64])
def test_lpbq_against_its_definition(block: int) -> None:
    """s_blk = max(max/7, -min/8); s_ch = the largest / 16; k = clip(round(s_blk / s_ch), 1, 16), block by block."""
    w = np.random.default_rng(0).standard_t(4, (5, 128, 1, 1)).astype(np.float32)
    made = lpbq(w, 0, block)
    assert made.block_scale is not None
    assert (made.axis, made.channel, made.block, made.block_scale.shape) == (1, 0, block, (5, 128 // block, 1, 1))
    for row in range(5):
        own = [max(b.max() / 7, -b.min() / 8) for b in w[row].reshape(-1, block)]
        unit = max(own) / 16
        assert made.scale[row] == np.float32(unit)
        assert made.block_scale[row].reshape(-1).tolist() == [min(max(round(s / unit), 1), 16) for s in own]
    np.testing.assert_array_equal(expansion(made.steps(), 0), made.block_scale)
    assert sqnr_db(w, made.dequantize(made.quantize(w))) > sqnr_db(w, _channel(w)) + 1


def _channel(w: Array) -> Array:
    made = per_channel(w, 0, 4)
    return made.dequantize(made.quantize(w))


def test_the_blocks_of_a_matmul_run_down_its_rows() -> None:
    """The same numbers as the Conv's, turned (C35)."""
    w = np.random.default_rng(1).normal(size=(6, 64)) * 10.0 ** np.arange(6)[:, None]
    conv, matmul = lpbq(w, 0, 16), lpbq(w.T, 1, 16)
    assert (matmul.axis, matmul.channel) == (0, 1)
    np.testing.assert_array_equal(conv.steps().T, matmul.steps())
    np.testing.assert_array_equal(conv.quantize(w).T, matmul.quantize(w.T))


def test_zero_and_tiny_channels_in_blocks() -> None:
    """C32."""
    w = np.zeros((4, 64))
    w[1, 3], w[2, :], w[3] = 1e-6, 1e-30, np.linspace(-1, 1, 64)
    made = lpbq(w, 0, 16)
    back = made.dequantize(made.quantize(w))
    assert (made.scale > 0).all()
    assert np.isfinite(back).all()
    assert (back[[0, 2]] == 0).all()
    assert back[1, 3] == pytest.approx(1e-6, rel=1e-3)
    np.testing.assert_array_equal(expansion(made.steps(), 0), made.block_scale)


@pytest.mark.parametrize(("scales", "said"), [
    ([[16, 8.5, 3]], r"block \[0, 1\] is 8.5000"), ([[16, 0.3, 3]], r"block \[0, 1\] is 0.3000"),
    ([[16, 1, 2], [5, 4, 1]], r"block \[1, 1\] is 12.8000")])
def test_steps_that_are_no_whole_numbers_of_their_channel(scales: list[list[float]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        expansion(np.array(scales, np.float32) * np.float32(0.37), 0)


@pytest.mark.parametrize("blocks", [[[5, 4], [16, 1]], [[8, 4], [16, 1]]])
def test_an_lpbq_weight_off_its_grid_is_not_printed(blocks: list[list[int]]) -> None:
    """A weight whose largest block was cut away: the compiler would take the next one for 16."""
    whole = np.array(blocks).reshape(2, 2, 1, 1)
    one = encodings.per_tensor(-1, 1, 16)
    w = np.ones((2, 8, 1, 1), np.float32)
    weight = Encoding(4, True, np.ones(2, np.float32), np.zeros(whole.shape, np.int64), 1, 4, whole, 0)
    model = parse("y = Conv(x, w)", "float[1, 8, 1, 2] x", "float[1, 2, 1, 2] y", w=w)
    with pytest.raises(EdgeForgeError, match=r"^w: the (step of block|largest block scale)"):
        qdq.quantize(model, Table({"x": one, "y": one, "w": weight}))
