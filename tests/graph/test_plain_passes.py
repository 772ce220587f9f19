"""What the passes for plain graphs do, each held against onnxruntime on the graph before it."""

from __future__ import annotations

import re

import graphs
import numpy as np
import onnx_ir as ir
import pytest

from edgeforge.graph import edit
from edgeforge.graph.batchnorm import FoldBatchNorm
from edgeforge.graph.gelu import FuseGelu
from edgeforge.graph.gemm import PlainGemm
from edgeforge.graph.indices import NarrowInputs, PlainIndices
from edgeforge.graph.mask import BoundMask
from edgeforge.graph.operand import RequantizeFixed, RequantizeOperands
from edgeforge.graph.reciprocal import DivideOne
from edgeforge.graph.requantize import is_operand
from edgeforge.graph.unshare import UnshareConstants
from edgeforge.quantize import assign

RNG = np.random.default_rng(0)
X, Y = "float[2,4,5,5] x", "float[2,4,5,5] y"


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def kept(model: ir.Model, step: ir.passes.InPlacePass, rtol: float = 1e-4) -> list[str]:
    """Runs a pass that must not change what comes out; the ops that are left."""
    feeds = graphs.feeds(model)
    before = graphs.run(model, feeds)
    step(model)
    graphs.same(before, graphs.run(model, feeds), rtol)
    return graphs.ops(model)


NORM = {"g": np.abs(normal(4)) + 0.5, "b": normal(4), "m": normal(4), "v": np.abs(normal(4)) + 0.5}


@pytest.mark.parametrize("bias", [False, True])
def test_a_batch_norm_goes_into_its_convolution(bias: bool) -> None:
    conv = f"c = Conv<pads=[1,1,1,1]>(x, w{', k' if bias else ''})"
    body = f"{conv}\n y = BatchNormalization<epsilon=0.01>(c, g, b, m, v)"
    parameters = NORM | {"w": normal(4, 4, 3, 3)} | ({"k": normal(4)} if bias else {})
    model = graphs.parse(body, X, Y, **parameters)
    assert kept(model, FoldBatchNorm()) == ["Conv"]
    assert "w" in model.graph.initializers, "a parameter keeps its name"


def test_a_batch_norm_alone_or_behind_a_shared_convolution_stays_right() -> None:
    assert kept(graphs.parse("y = BatchNormalization(x, g, b, m, v)", X, Y, **NORM), FoldBatchNorm()) == ["Mul", "Add"]
    body = "c = Conv(x, w)\n d = BatchNormalization(c, g, b, m, v)\n e = Conv(d, w)\n y = Add(d, e)"
    model = graphs.parse(body, X, Y, w=normal(4, 4, 1, 1), **NORM)
    assert kept(model, FoldBatchNorm()) == ["Conv", "Conv", "Add"]


@pytest.mark.parametrize("body", [
    "a = Div(x, r2)\n e = Erf(a)\n p = Add(e, one)\n m = Mul(x, p)\n y = Mul(m, half)",
    "a = Mul(x, ir2)\n e = Erf(a)\n p = Add(one, e)\n h = Mul(half, p)\n y = Mul(x, h)",
    "a = Div(x, r2)\n e = Erf(a)\n p = Add(e, one)\n h = Mul(x, half)\n y = Mul(h, p)",
    "c = Pow(x, three)\n d = Mul(c, k)\n s = Add(x, d)\n a = Mul(s, q)\n e = Tanh(a)\n p = Add(e, one)\n "
    "h = Mul(half, x)\n y = Mul(h, p)"])
def test_gelu_is_recognised_however_it_is_written(body: str) -> None:
    numbers = {"r2": 2**0.5, "ir2": 0.5**0.5, "one": 1.0, "half": 0.5, "three": 3.0, "k": 0.044715,
               "q": (2 / np.pi)**0.5}
    words = set(re.findall(r"\w+", body))
    model = graphs.parse(body, X, Y, **{n: np.float32(v) for n, v in numbers.items() if n in words})
    assert kept(model, FuseGelu()) == ["Gelu"]


def test_something_like_gelu_is_left_alone() -> None:
    body = "a = Div(x, r2)\n e = Erf(a)\n p = Add(e, one)\n m = Mul(x, p)\n y = Mul(m, third)"
    model = graphs.parse(body, X, Y, r2=np.float32(2**0.5), one=np.float32(1), third=np.float32(1 / 3))
    assert "Erf" in kept(model, FuseGelu())


@pytest.mark.parametrize("low", [-np.inf, np.finfo(np.float32).min, -1e9, -10000.0])
def test_masks_are_bounded_and_the_guard_against_nan_goes(low: float) -> None:
    body = ("m = Where(keep, zero, low)\n s = Add(x, m)\n p = Softmax<axis=-1>(s)\n n = IsNaN(p)\n "
            "y = Where(n, zero, p)")
    keep = np.tril(np.ones((5, 5), bool))
    model = graphs.parse(body, X, Y, keep=keep, zero=np.float32(0), low=np.float32(low))
    assert kept(model, BoundMask(-50.0)) == ["Where", "Add", "Softmax"]
    assert min(float(a.min()) for v in model.graph.initializers.values()
               if (a := edit.constant(v)) is not None and a.dtype.kind == "f") == -50.0


@pytest.mark.parametrize(("body", "ops"), [
    # the constant's other reader
    ("m = Where(keep, zero, low)\n s = Add(x, m)\n p = Softmax<axis=-1>(s)\n o = Max(deep, low)\n y = Add(p, o)", 0),
    # the mask's
    ("m = Where(keep, zero, low)\n s = Add(x, m)\n p = Softmax<axis=-1>(s)\n o = Max(deep, m)\n y = Add(p, o)", 1),
    # the scores', which also leave the graph
    ("m = Where(keep, zero, low)\n z = Add(x, m)\n p = Softmax<axis=-1>(z)\n y = Neg(p)", 2),
    # two ways that meet
    ("m = Where(keep, zero, low)\n n = Where(keep, zero, low)\n a = Add(m, n)\n s = Add(x, a)\n "
     "p = Softmax<axis=-1>(s)\n o = Max(a, deep)\n q = Max(n, o)\n y = Add(p, q)", 3),
])
def test_a_shared_mask_is_bounded_for_the_softmax_alone(body: str, ops: int) -> None:
    outputs = "float[1,5,5] y, float[1,5,5] z" if "z = " in body else "float[1,5,5] y"
    keep = np.tril(np.ones((5, 5), bool))
    model = graphs.parse(body, "float[1,5,5] x", outputs, keep=keep, zero=np.float32(0), low=np.float32(-1e9),
                         **({"deep": np.float32(-500)} if "deep" in body else {}))
    data = graphs.feeds(model)
    before, count = graphs.run(model, data), len(graphs.ops(model))
    assert BoundMask(-50.0)(model).modified
    graphs.same(before, graphs.run(model, data))
    assert len(graphs.ops(model)) == count + ops, "only what is read on both ways is made twice"
    assert not BoundMask(-50.0)(model).modified


def test_a_large_constant_that_masks_nothing_stays() -> None:
    model = graphs.parse("y = Add(x, low)", X, Y, low=np.float32(-2e4))
    BoundMask(-50.0)(model)
    assert edit.scalar(model.graph.initializers["low"]) == -2e4


@pytest.mark.parametrize(("attributes", "bias", "left"), [
    ("transB=1", (6,), ["Gemm"]), ("transB=1", (1, 6), ["Gemm"]), ("transB=1", (), ["Gemm"]),
    ("transB=1, alpha=0.5", (6,), ["MatMul", "Mul", "Add"]), ("transB=1, beta=2.0", (6,), ["MatMul", "Mul", "Add"]),
    ("transB=1", (3, 6), ["MatMul", "Add"])])
def test_gemm_in_every_form(attributes: str, bias: tuple[int, ...], left: list[str]) -> None:
    model = graphs.parse(f"y = Gemm<{attributes}>(x, w, b)", "float[3,4] x", "float[3,6] y", w=normal(6, 4),
                         b=np.asarray(normal(*bias), np.float32))
    assert sorted(kept(model, PlainGemm())) == sorted(left)


def test_gemm_of_two_activations_is_a_product() -> None:
    model = graphs.parse("y = Gemm<transA=1, transB=1>(x, z)", "float[4,3] x, float[6,4] z", "float[3,6] y")
    assert kept(model, PlainGemm()) == ["Transpose", "Transpose", "MatMul"]


def test_one_over_x_is_a_division() -> None:
    assert kept(graphs.parse("a = Exp(x)\n y = Reciprocal(a)", X, Y), DivideOne()) == ["Exp", "Div"]


def test_a_look_up_of_everything_in_order_is_a_view_and_negative_indices_are_counted_from_the_front() -> None:
    order = np.stack([np.repeat(np.arange(2), 4), np.tile(np.arange(4), 2)], -1)
    model = graphs.parse("a = GatherND(x, o)\n y = Gather<axis=1>(a, last)", X, "float[8,5] y", o=order,
                         last=np.array(-1))
    assert kept(model, PlainIndices()) == ["Reshape", "Gather"]
    assert edit.ints(model.graph.node(1).inputs[1]) == [4]
    swapped = graphs.parse("y = GatherND(x, o)", X, "float[8,5,5] y", o=order[::-1].copy())
    assert kept(swapped, PlainIndices()) == ["GatherND"]


def test_inputs_of_64_bits_are_narrowed_and_widened_only_where_it_matters() -> None:
    body = "a = Gather(t, i)\n b = Add(i, i)\n c = Cast<to=1>(b)\n d = ReduceSum<keepdims=0>(c)\n y = Add(a, d)"
    model = graphs.parse(body, "int64[3] i", "float[3,2] y", t=normal(5, 2))
    before = graphs.run(model, {"i": np.array([1, 4, 0])})
    NarrowInputs()(model)
    graphs.same(before, graphs.run(model, {"i": np.array([1, 4, 0], np.int32)}))
    assert graphs.ops(model).count("Cast") == 2


def test_a_constant_with_two_parts_gets_a_copy_whatever_names_are_taken() -> None:
    """C26: the copy's name must not be one that the graph has."""
    body = "p = MatMul(x, w)\n a = LayerNormalization(p, b, b)\n q = Gemm(a, w, b)\n y = Add(q, b)"
    model = graphs.parse(body, "float[3,4] x", "float[3,4] y", w=normal(4, 4), b=normal(4))
    edit.initializer(model.graph, "b/of/q", normal(4))
    assert kept(model, UnshareConstants()) == ["MatMul", "LayerNormalization", "Gemm", "Add"]
    uses = [(1, 1), (1, 2), (2, 2), (3, 1)]
    used = [value.name for node, index in uses if (value := model.graph.node(node).inputs[index]) is not None]
    assert len(set(used)) == 4
    assert "b/of/q" not in used


def test_second_operands_get_a_grid_that_htp_multiplies_by() -> None:
    model = graphs.parse("y = MatMul(x, z)", "float[2,3,4] x, float[2,4,3] z", "float[2,3,3] y")
    assert kept(model, RequantizeOperands()) == ["Identity", "MatMul"]
    operand = model.graph.node(0).outputs[0]
    assert is_operand(operand)
    table = assign.assign(model.graph, {"x": (-1, 1), "z": (-1, 1), str(operand.name): (-1, 3), "y": (-1, 1)},
                          assign.Grids())
    wide = table[str(operand.name)]
    assert (wide.dtype, int(wide.zero_point)) == ("int16", 0)
    narrow = assign.assign(model.graph, {"x": (-1, 1), "z": (-1, 1), str(operand.name): (-1, 3), "y": (-1, 1)},
                           assign.Grids(operand=8))[str(operand.name)]
    assert (narrow.dtype, int(narrow.zero_point)) == ("uint8", 128)


def test_a_fixed_grid_does_not_clip_its_neighbours() -> None:
    model = graphs.parse("a = Sigmoid(x)\n y = Concat<axis=1>(a, x)", X, "float[2,8,5,5] y")
    assert kept(model, RequantizeFixed()) == ["Sigmoid", "Identity", "Concat"]
    ranges = {"x": (-4.0, 4.0), "a": (0.1, 0.9), "a/free": (0.1, 0.9)}
    table = assign.assign(model.graph, ranges, assign.Grids())
    assert float(table["a"].scale) == pytest.approx(1 / 65535)
    assert float(table["y"].scale) == pytest.approx(8 / 65535)


def test_a_clip_ends_where_its_grid_does() -> None:
    model = graphs.parse("y = Clip(x, lo, hi)", X, Y, lo=np.float32(0), hi=np.float32(6))
    table = assign.assign(model.graph, {"x": (-9, 9), "y": (0, 6)}, assign.Grids())
    assert set(table) == {"x", "y"}
    assert float(table["y"].scale) == pytest.approx(6 / 65535)
    assert int(table["y"].zero_point) == 0
