from __future__ import annotations

import graphs
import numpy as np
import onnx_ir as ir
import pytest

from edgeforge.graph.scale import SCALED, FoldScale

HALF = "half = Constant<value = float {0.5}>()\n"
X, Y = "float[1,s,8] x", "float[1,s,4] y"
MATMUL = "turned = Transpose<perm=[1,0]>(w)\n a = MatMul(x, turned)\n"


def _apply(body: str, inputs: str = X, outputs: str = Y, **parameters: np.ndarray) -> tuple[bool, ir.Model]:
    model = graphs.parse(HALF + body, inputs, outputs, **parameters)
    return graphs.apply(FoldScale(), model, s=3), model


def _scaled(model: ir.Model) -> dict[str, str]:
    return {k.removeprefix(SCALED): v for k, v in model.metadata_props.items() if k.startswith(SCALED)}


@pytest.mark.parametrize("last", ["y = Mul(a, half)", "y = Mul(half, a)"])
def test_into_a_matrix_behind_a_transpose(last: str) -> None:
    changed, model = _apply(MATMUL + last, w=graphs.rows(4, 8))
    assert changed
    assert graphs.ops(model) == ["Transpose", "MatMul"]
    assert _scaled(model) == {"w": "0.5"}
    assert model.graph.outputs[0].name == "y"
    assert model.graph.initializers["w"].name == "w"


def test_a_division_is_a_factor() -> None:
    changed, model = _apply(MATMUL + "y = Div(a, half)", w=graphs.rows(4, 8))
    assert changed
    assert _scaled(model) == {"w": "2.0"}


def test_a_number_divided_by_the_value_is_not() -> None:
    changed, _ = _apply(MATMUL + "y = Div(half, a)", w=graphs.rows(4, 8))
    assert not changed


@pytest.mark.parametrize("add", ["b = Add(a, bias)", "b = Add(bias, a)"])
def test_weight_and_bias_together(add: str) -> None:
    changed, model = _apply(MATMUL + add + "\n y = Mul(b, half)", w=graphs.rows(4, 8), bias=graphs.rows(4))
    assert changed
    assert _scaled(model) == {"w": "0.5", "bias": "0.5"}


def test_through_views_and_a_convolution() -> None:
    body = "a = Conv(x, w, bias)\n b = Transpose<perm=[0,2,3,1]>(a)\n y = Mul(b, half)"
    changed, model = _apply(body, "float[1,8,1,s] x", "float[1,1,s,4] y", w=graphs.rows(4, 8, 1, 1),
                            bias=graphs.rows(4))
    assert changed
    assert graphs.ops(model) == ["Conv", "Transpose"]


def test_through_rope_because_it_is_linear() -> None:
    body = "a = RMSNormalization(x, g)\n b = RotaryEmbedding(a, cos, sin)\n y = Mul(b, half)"
    rope = "float[1,1,s,8] x, float[1,s,4] cos, float[1,s,4] sin"
    changed, model = _apply(body, rope, "float[1,1,s,8] y", g=graphs.rows(8))
    assert changed
    assert _scaled(model) == {"g": "0.5"}


def test_into_an_embedding_of_its_own() -> None:
    model = graphs.parse(HALF + "a = Gather(table, ids)\n y = Mul(a, half)", "int64[s] ids", "float[s,8] y",
                         table=graphs.rows(5, 8))
    before = graphs.run(model, {"ids": np.array([4, 1])})
    assert FoldScale()(model).modified
    graphs.same(before, graphs.run(model, {"ids": np.array([4, 1])}))
    assert graphs.ops(model) == ["Gather"]


def test_two_factors_are_recorded_as_one() -> None:
    changed, model = _apply(MATMUL + "b = Mul(a, half)\n y = Mul(b, half)", w=graphs.rows(4, 8))
    assert changed
    assert _scaled(model) == {"w": "0.25"}


@pytest.mark.parametrize("body", [
    MATMUL + "y = Mul(a, half)\n z = Relu(a)",                      # the product has another reader
    MATMUL + "y = Mul(a, half)\n z = MatMul(x, turned)",            # another product reads the turned weight
    MATMUL + "y = Mul(a, half)\n z = Transpose<perm=[1,0]>(w)",     # the weight is tied
])
def test_shared_parameters_are_left_alone(body: str) -> None:
    shape = "float[8,4] z" if "z = Transpose" in body else "float[1,s,4] z"
    weights = graphs.rows(4, 8)
    changed, model = _apply(body, outputs=f"{Y}, {shape}", w=weights)
    assert not changed
    np.testing.assert_array_equal(model.graph.initializers["w"].const_value.numpy(), weights)


def test_a_tied_embedding_is_left_alone() -> None:
    body = HALF + "e = Gather(table, ids)\n a = Mul(e, half)\n t = Transpose<perm=[1,0]>(table)\n y = MatMul(a, t)"
    model = graphs.parse(body, "int64[s] ids", "float[s,5] y", table=graphs.rows(5, 8))
    assert not FoldScale()(model).modified


def test_a_shared_bias_keeps_weight_and_bias() -> None:
    body = MATMUL + "b = Add(a, bias)\n y = Mul(b, half)\n z = Relu(bias)"
    changed, _ = _apply(body, outputs=f"{Y}, float[4] z", w=graphs.rows(4, 8), bias=graphs.rows(4))
    assert not changed


@pytest.mark.parametrize("body", [
    MATMUL + "b = Relu(a)\n y = Mul(b, half)",      # not linear
    MATMUL + "y = Mul(a, gain)",                    # not one number
    "a = MatMul(x, x2)\n y = Mul(a, half)",         # no parameter
])
def test_what_a_factor_does_not_commute_with(body: str) -> None:
    parameters = {name: graphs.rows(*shape) for name, shape in (("w", (4, 8)), ("gain", (4,))) if f"{name})" in body}
    inputs = X if "x2" not in body else f"{X}, float[1,8,4] x2"
    changed, _ = _apply(body, inputs, **parameters)
    assert not changed
