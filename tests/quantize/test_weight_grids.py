"""Which grid each weight gets, those that no search fits among them."""

from __future__ import annotations

import numpy as np
import pytest
from quant_graphs import adapted, parse

from edgeforge.calibrate import observe
from edgeforge.encoding import Encoding
from edgeforge.encodings import Table
from edgeforge.errors import RecipeError
from edgeforge.quantize import assign, footprint, quality, weight_grids
from edgeforge.quantize.products import products
from edgeforge.quantize.weights.grid import Grid, per_channel
from edgeforge.sections import Quantize

OUTSIDE = {
    "depthwise": ("y = Conv<group=3>(x, w)", "float[1,3,5,5] x", (3, 1, 1, 1), 0),
    "grouped": ("y = Conv<group=2>(x, w)", "float[1,4,5,5] x", (6, 2, 3, 3), 0),
    "padded by a rule": ('y = Conv<auto_pad="SAME_UPPER">(x, w)', "float[1,3,5,5] x", (4, 3, 3, 3), 0),
    "read twice": ("z = Conv(x, w) z2 = Conv(x, w) y = Add(z, z2)", "float[1,3,5,5] x", (4, 3, 1, 1), 0),
    "turned once, read twice": ("t = Transpose<perm=[1,0]>(w) z = MatMul(x, t) z2 = MatMul(x, t) y = Add(z, z2)",
                                "float[2,5,6] x", (4, 6), 0),
    "transposed": ("y = ConvTranspose(x, w)", "float[1,3,5,5] x", (3, 4, 2, 2), 1),
    "over a volume": ("y = Conv(x, w)", "float[1,3,5,5,5] x", (4, 3, 2, 2, 2), 0),
    "a batch of matrices": ("y = MatMul(x, w)", "float[2,5,6] x", (2, 6, 4), 2),
}
"""body, input, shape and output axis of a weight that no search fits"""


@pytest.mark.parametrize("kind", OUTSIDE)
def test_what_no_search_fits_holds_its_largest_value_in_8_bits(kind: str) -> None:
    """And in 4 where an exception says so, which can name it."""
    body, inputs, shape, axis = OUTSIDE[kind]
    w = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    graph = parse(body, inputs, "float y", w=w).graph
    ranges = {str(v.name): (-9.0, 9.0) for v in observe.sources(graph)}
    assert list(products(graph)) == []
    for options, bits in ((Quantize(weights=4), 8), (Quantize(), 8), (Quantize(weights=16), 16),
                          (Quantize(weights=4, block=16, exceptions={"w": 4}), 4)):
        assert weight_grids.choose(graph, options, False) == {}
        found = weight_grids.outside(graph, options)
        assert found == {"w": bits}
        table = assign.assign(graph, ranges, assign.Grids(weights=options.weights), bits=found)
        e = table["w"]
        assert (e.bits, e.axis, e.scale.shape) == (bits, axis, (shape[axis],))
        lost = np.abs(e.dequantize(e.quantize(w)) - w).max(tuple(a for a in range(w.ndim) if a != axis))
        assert (lost <= 0.5001 * e.scale).all()
        assert footprint.bits_per_weight(graph, table) == pytest.approx(bits + 32 * shape[axis] / w.size)
        assert weight_grids.left_whole(graph, options, False) == ({"w": "no search fits it"} if bits == 4 else {})
    with pytest.raises(RecipeError, match="r.yaml:3: no product's weight is called v; the nearest is w"):
        weight_grids.refuse_strangers(graph, Quantize(exceptions={"v": 8}), "r.yaml:3")


def test_bits_a_weight_count_blocks_and_every_weight() -> None:
    weights = {"w": np.ones((4, 32, 1, 1), np.float32), "dw": np.ones((4, 1, 3, 3), np.float32)}
    graph = parse("c = Conv(x, w) y = Conv<group=4>(c, dw)", "float[1,32,5,5] x", "float y", **weights).graph
    blocks = Encoding(4, True, np.ones(4, np.float32), np.zeros((4, 2, 1, 1), np.int64), 1, 16,
                      np.full((4, 2, 1, 1), 16), 0)
    table = {"w": blocks, "dw": per_channel(weights["dw"], 0, 8)}
    assert footprint.bits_per_weight(graph, table) == pytest.approx((128 * 4 + 4 * 32 + 8 * 4 + 36 * 8 + 4 * 32) / 164)


@pytest.mark.parametrize(("shape", "axis", "block", "steps"), [((), None, None, 1), ((4,), 0, None, 4),
                                                               ((4, 2), 1, 16, 8)])
def test_every_float_step_counts(shape: tuple[int, ...], axis: int | None, block: int | None, steps: int) -> None:
    foreign = Encoding(4, True, np.ones(shape, np.float32), np.zeros(shape, np.int64), axis, block)
    assert footprint.stored_bits(4 * 32, foreign) == 4 * 32 * 4 + 32 * steps


@pytest.mark.parametrize(("four", "of"), [(1, 19), (1, 21)])
def test_few_weights_of_4_bits_do_not_make_a_4_bit_model(four: int, of: int) -> None:
    """What the gates' limits go by: more than one weight in twenty."""
    weights = {f"w{i}": np.eye(4, dtype=np.float32) for i in range(of)}
    body = " ".join(f"y{i} = MatMul({f'y{i - 1}' if i else 'x'}, w{i})" for i in range(of))
    graph = parse(body, "float[2,4] x", f"float y{of - 1}", **weights).graph
    table = Table({n: per_channel(w, 1, 4 if n < f"w{four}" else 8) for n, w in weights.items()})
    assert footprint.four_bits(graph, table) == (four / of > 0.05)


def test_logits_of_a_plain_graph_are_no_language_models() -> None:
    """Classifiers and segmenters call their output so, too."""
    graph = parse("y = MatMul(x, w) logits = Relu(y)", "float[2,32] x", "float[2,4] logits",
                  w=np.ones((32, 4), np.float32)).graph
    options = Quantize(weights=4, head=8)
    for decoder, bits in ((False, 4), (True, 8)):
        assert weight_grids.choose(graph, options, decoder) == {"w": Grid(bits)}
        assert quality.method(Quantize(quality="best"), decoder).importance is decoder
    assert set(weight_grids.candidates(graph, options, False)) == {"w"}
    assert weight_grids.candidates(graph, options, True) == {}


def test_why_a_turned_weight_has_no_blocks() -> None:
    graph = parse("t = Transpose<perm=[1,0]>(w) y = MatMul(x, t)", "float[2,32] x", "float[2,4] y",
                  w=np.ones((4, 32), np.float32)).graph
    assert weight_grids.left_whole(graph, Quantize(weights=4, block=16), False) == {"w": "it passes a Transpose"}


def test_blocks_where_they_divide_and_channels_where_they_do_not() -> None:
    """C31: 120 inputs, and a kernel of 3x3, keep one scale a channel, and are reported."""
    shapes = {"a": (8, 128, 1, 1), "b": (120, 8, 1, 1), "c": (5, 120, 1, 1), "k": (64, 5, 3, 3), "m": (64, 8)}
    model = parse("p = Conv(x, a) q = Conv(p, b) r = Conv(q, c) s = Conv(r, k) t = Transpose<perm = [0, 2, 3, 1]>(s) "
                  "y = MatMul(t, m)", "float[1,128,3,3] x", "float[1,1,1,8] y",
                  **{n: np.ones(s, np.float32) for n, s in shapes.items()})
    options = Quantize(weights=4, block=64)
    found = weight_grids.choose(model.graph, options, False)
    assert {n: (g.bits, g.block, g.lpbq) for n, g in found.items()} == {
        "a": (4, 64, True), "b": (4, None, False), "c": (4, None, False), "k": (4, None, False), "m": (4, 64, True)}
    assert weight_grids.left_whole(model.graph, options, False) == {
        "b": "8 inputs", "c": "120 inputs", "k": "only 1x1 convolutions and MatMuls take blocks"}


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_the_head_has_bits_of_its_own(family: str) -> None:
    """Behind a soft cap, too."""
    _, model = adapted(family)
    found = weight_grids.choose(model.graph, Quantize(weights=4, block=16, head=8), True)
    assert {n: g.bits for n, g in found.items() if g.bits != 4} == {"lm_head.weight": 8}
