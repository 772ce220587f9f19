"""Requantize, offsets, chunks, fused projections, static shapes: the passes of one idea each."""

from __future__ import annotations

import graphs
import numpy as np
import onnx_ir as ir
import pytest

from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit
from edgeforge.graph.chunk import SliceChunks
from edgeforge.graph.offset import SHIFTED, FoldOffset
from edgeforge.graph.requantize import InsertRequantize, is_requantize
from edgeforge.graph.static import StaticShapes
from edgeforge.graph.unfuse import SplitFused

X, Y = "float[1,s,8] x", "float[1,s,8] y"


# -- requantize ------------------------------------------------------------------------------------------

def test_each_cache_output_gets_one_requantize() -> None:
    body = "past_key_0_out = Relu(x)\n y = Neg(past_key_0_out)"
    model = graphs.parse(body, X, f"float[1,s,8] past_key_0_out, {Y}")
    assert graphs.apply(InsertRequantize(), model, s=3)
    assert graphs.ops(model) == ["Relu", "Identity", "Neg"]
    relu, identity, neg = model.graph
    assert is_requantize(identity)
    assert not is_requantize(relu)
    assert relu.outputs[0].name == "past_key_0_out/wide"
    assert [v.name for v in model.graph.outputs] == ["past_key_0_out", "y"]
    assert neg.inputs[0] is identity.outputs[0], "attention must read what the cache will hold"


def test_without_a_cache_nothing_happens() -> None:
    assert not graphs.apply(InsertRequantize(), graphs.parse("y = Relu(x)", X, Y), s=3)


# -- offset ----------------------------------------------------------------------------------------------

ONE = "one = Constant<value = float {1.0}>()\n"


@pytest.mark.parametrize("add", ["g = Add(w, one)", "g = Add(one, w)"])
def test_one_plus_w_is_folded_into_w(add: str) -> None:
    model = graphs.parse(ONE + add + "\n y = RMSNormalization(x, g)", X, Y, w=graphs.rows(8))
    assert graphs.apply(FoldOffset(), model, s=3)
    assert graphs.ops(model) == ["RMSNormalization"]
    assert model.graph.node(0).inputs[1].name == "w"
    assert model.metadata_props[f"{SHIFTED}w"] == "1.0"


@pytest.mark.parametrize("body", [
    ONE + "g = Add(w, one)\n a = Mul(x, g)\n y = Mul(a, w)",   # w is read elsewhere
    ONE + "a = Add(x, one)\n y = Mul(a, w)",                   # an activation
    "g = Add(w, w)\n y = Mul(x, g)",                           # not a number
])
def test_other_additions_are_left_alone(body: str) -> None:
    w = graphs.rows(8)
    model = graphs.parse(body, X, Y, w=w)
    assert not graphs.apply(FoldOffset(), model, s=3)
    np.testing.assert_array_equal(model.graph.initializers["w"].const_value.numpy(), w)


# -- chunk -----------------------------------------------------------------------------------------------

CHUNK = """
    size = Constant<value = int64 {{{0}}}>()
    i = Constant<value = int64 {{0}}>()
    j = Constant<value = int64 {{-1}}>()
    both = SplitToSequence<axis=-1, keepdims=1>(x, size)
    a = SequenceAt(both, i)
    b = SequenceAt(both, j)
    y = Concat<axis=-1>(b, a)
"""


@pytest.mark.parametrize("size", [4, 3, 8])
def test_chunks_become_slices(size: int) -> None:
    """Also when the last one is smaller, and counted from the end."""
    width = 16 if size == 8 else 8 if size == 4 else 5
    model = graphs.parse(CHUNK.format(size), X, f"float[1,s,{width}] y")
    for node in model.graph:
        if node.op_type == "SequenceAt":
            edit.set_shape(node.outputs[0], [1, "s", size])
        elif node.op_type == "SplitToSequence":
            node.outputs[0].type = node.outputs[0].shape = None  # inference took the sequence for a tensor
    data = graphs.feeds(model, s=3)
    before = graphs.run(model, data)
    assert SliceChunks()(model).modified
    assert not SliceChunks()(model).modified
    assert set(graphs.ops(model)) == {"Slice", "Concat"}
    graphs.same(before, graphs.run(model, data))


def test_chunks_of_an_open_dimension_stay() -> None:
    model = graphs.parse(CHUNK.format(4).replace("axis=-1, keepdims", "axis=1, keepdims"), X, "float[1,t,u] y")
    assert not SliceChunks()(model).modified


# -- unfuse ----------------------------------------------------------------------------------------------

FUSED = """
    zero = Constant<value = int64[1] {0}>()
    four = Constant<value = int64[1] {4}>()
    six = Constant<value = int64[1] {6}>()
    last = Constant<value = int64[1] {2}>()
    one = Constant<value = int64[1] {1}>()
    c = Conv(x, w, bias)
    t = Transpose<perm=[0,2,3,1]>(c)
    u = Squeeze(t, one)
    a = Slice(u, zero, four, last)
    b = Slice(u, four, six, last)
    y = Relu(a)
    z = Relu(b)
"""
CONV_X, CONV_YZ = "float[1,8,1,s] x", "float[1,s,4] y, float[1,s,2] z"


def _fused(body: str = FUSED, outputs: str = CONV_YZ) -> ir.Model:
    return graphs.parse(body, CONV_X, outputs, w=graphs.rows(6, 8, 1, 1), bias=graphs.rows(6))


def test_a_fused_projection_becomes_one_a_part() -> None:
    model = _fused()
    assert graphs.apply(SplitFused(), model, s=3)
    assert graphs.ops(model).count("Conv") == 2
    assert "Slice" not in graphs.ops(model)
    used = {v.name for v in model.graph.initializers.values() if v.uses()}
    assert {"w/rows_0_4", "w/rows_4_6", "bias/rows_0_4", "bias/rows_4_6"} <= used
    assert {"a", "b"} <= edit.names(model.graph), "the parts' values keep their names"


@pytest.mark.parametrize(("old", "new", "outputs"), [
    ("z = Relu(b)", "z = Relu(u)", "float[1,s,4] y, float[1,s,6] z"),           # someone reads the whole
    ("six, last", "six, one", "float[1,s,4] y, float[1,t,6] z"),                # a slice of tokens
    ("z = Relu(b)", "z = Relu(b)\n v = Relu(w)", CONV_YZ + ", float[6,8,1,1] v"),  # the weight is shared
    ("z = Relu(b)", "z = Relu(b)\n v = Identity(u)", CONV_YZ + ", float[1,s,6] v"),
])
def test_a_projection_that_others_read_stays_whole(old: str, new: str, outputs: str) -> None:
    assert not graphs.apply(SplitFused(), _fused(FUSED.replace(old, new), outputs), s=7)


def test_a_slice_of_a_head_is_not_a_slice_of_channels() -> None:
    """Behind a Reshape to [.., heads, d] the last dimension is d: rows 0..d/2 of the weight would be wrong."""
    body = """
        shape = Constant<value = int64[4] {1, -1, 2, 3}>()
        zero = Constant<value = int64[1] {0}>()
        one = Constant<value = int64[1] {1}>()
        three = Constant<value = int64[1] {3}>()
        c = Conv(x, w, bias)
        t = Transpose<perm=[0,2,3,1]>(c)
        r = Reshape(t, shape)
        y = Slice(r, zero, one, three)
        z = Slice(r, one, three, three)
    """
    assert not graphs.apply(SplitFused(), _fused(body, "float[1,s,2,1] y, float[1,s,2,2] z"), s=3)


def test_a_slice_of_tokens_brought_to_the_end_is_not_one_of_channels() -> None:
    body = FUSED.replace("perm=[0,2,3,1]", "perm=[0,2,1,3]").replace("(u, four, six", "(u, one, six")
    model = graphs.parse(body, "float[1,8,1,6] x", "float[1,6,4] y, float[1,6,5] z", w=graphs.rows(6, 8, 1, 1),
                         bias=graphs.rows(6))
    assert not graphs.apply(SplitFused(), model)


def test_a_dimension_added_behind_the_channels_is_not_the_channels() -> None:
    body = """
        four = Constant<value = int64[1] {4}>()
        zero = Constant<value = int64[1] {0}>()
        one = Constant<value = int64[1] {1}>()
        c = Conv(x, w, bias)
        t = Transpose<perm=[0,2,3,1]>(c)
        u = Unsqueeze(t, four)
        a = Slice(u, zero, one, four)
        y = Relu(a)
    """
    assert not graphs.apply(SplitFused(), _fused(body, "float[1,1,s,6,1] y"), s=3)


def test_grouped_convolutions_are_left_alone() -> None:
    body = FUSED.replace("Conv(x, w, bias)", "Conv<group=2>(x, w, bias)")
    model = graphs.parse(body, CONV_X, CONV_YZ, w=graphs.rows(6, 4, 1, 1), bias=graphs.rows(6))
    assert not graphs.apply(SplitFused(), model, s=3)


# -- static ----------------------------------------------------------------------------------------------

def test_a_computed_reshape_target_becomes_a_constant() -> None:
    body = """
        one = Constant<value = int64[1] {1}>()
        rest = Constant<value = int64[2] {2, 4}>()
        tokens = Shape<start=1, end=2>(x)
        target = Concat<axis=0>(one, tokens, rest)
        y = Reshape(x, target)
    """
    model = graphs.parse(body, X, "float[1,s,2,4] y")
    edit.set_shape(model.graph.outputs[0], [1, "s", 2, 4])
    data = graphs.feeds(model, s=3)
    before = graphs.run(model, data)
    assert StaticShapes()(model).modified
    reshape = model.graph.node(-1)
    assert edit.ints(reshape.inputs[1]) == [1, -1, 2, 4]
    graphs.same(before, graphs.run(model, data))
    assert not StaticShapes()(model).modified


def test_two_open_dimensions_are_refused_by_name() -> None:
    body = "shape = Shape(z)\n y = Reshape(x, shape)"
    model = graphs.parse(body, f"{X}, float[a,b] z", "float[a,b] y")
    edit.set_shape(model.graph.outputs[0], ["a", "b"])
    with pytest.raises(UnsupportedError, match="y: Reshape to"):
        StaticShapes()(model)


@pytest.mark.parametrize(("start", "stop", "bounds"), [
    (1, 9223372036854775807, (1, 8)), (-3, 9223372036854775807, (5, 8)), (0, -1, (0, 7)), (2, 6, (2, 6))])
def test_slice_bounds_are_clamped_to_the_dimension(start: int, stop: int, bounds: tuple[int, int]) -> None:
    """2^63-1 cut down to 32 bits would be -1, one row short."""
    body = f"""
        start = Constant<value = int64[1] {{{start}}}>()
        stop = Constant<value = int64[1] {{{stop}}}>()
        last = Constant<value = int64[1] {{-1}}>()
        step = Constant<value = int64[1] {{1}}>()
        y = Slice(x, start, stop, last, step)
    """
    model = graphs.parse(body, X, f"float[1,s,{bounds[1] - bounds[0]}] y")
    assert graphs.apply(StaticShapes(), model, s=3)
    assert [edit.ints(v) for v in model.graph.node(0).inputs[1:]] == [[bounds[0]], [bounds[1]], [2]]


def test_slices_that_skip_or_of_open_dimensions_stay() -> None:
    body = """
        zero = Constant<value = int64[1] {0}>()
        end = Constant<value = int64[1] {9223372036854775807}>()
        axis = Constant<value = int64[1] {AXIS}>()
        step = Constant<value = int64[1] {STEP}>()
        y = Slice(x, zero, end, axis, step)
    """
    skips = graphs.parse(body.replace("AXIS", "2").replace("STEP", "2"), X, "float[1,s,4] y")
    assert not graphs.apply(StaticShapes(), skips, s=3)
    tokens = graphs.parse(body.replace("AXIS", "1").replace("STEP", "1"), X, "float[1,t,8] y")
    assert not graphs.apply(StaticShapes(), tokens, s=3)


def test_casts_that_change_nothing_go() -> None:
    model = graphs.parse("a = Cast<to=1>(x)\n b = Cast<to=10>(a)\n c = Cast<to=1>(b)\n y = CastLike(c, x)", X, Y)
    assert graphs.apply(StaticShapes(), model, s=3)
    assert [n.op_type for n in model.graph if n.outputs[0].uses() or n.outputs[0].is_graph_output()] == [
        "Cast", "Cast", "CastLike"], "a cast that makes a graph output keeps it"


def _conv_bias(body: str, **parameters: np.ndarray) -> int:
    model = graphs.parse(body, CONV_X, "float[1,6,1,s] y", w=graphs.rows(6, 8, 1, 1), **parameters)
    graphs.apply(StaticShapes(), model, s=3)
    return len(model.graph.node(-1).inputs)


def test_the_exporters_zero_bias_goes_and_a_parameter_stays() -> None:
    computed = """
        zero = Constant<value = float {0.0}>()
        six = Constant<value = int64[1] {6}>()
        bias = Expand(zero, six)
        y = Conv(x, w, bias)
    """
    assert _conv_bias(computed) == 2
    assert _conv_bias(computed.replace("{0.0}", "{1.0}")) == 3
    assert _conv_bias("y = Conv(x, w, bias)", bias=np.zeros(6, np.float32)) == 3
