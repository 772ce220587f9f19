from __future__ import annotations

import graphs
import pytest

from edgeforge.graph import edit
from edgeforge.graph.rank import LiftRank
from edgeforge.graph.views import CancelViews

X, Y = "float[1,s,8] x", "float[1,s,8] y"


def test_pointwise_ops_run_on_four_dimensions() -> None:
    model = graphs.parse("a = Sigmoid(x)\n b = Mul(x, a)\n y = Add(b, x)", X, Y)
    assert graphs.apply(LiftRank(), model, s=3)
    for node in model.graph:
        if node.op_type in ("Sigmoid", "Mul", "Add"):
            assert edit.dims(node.outputs[0]) == [1, 1, "s", 8]
    CancelViews()(model)
    assert graphs.ops(model) == ["Unsqueeze", "Sigmoid", "Mul", "Add", "Squeeze"]
    assert [v.name for v in model.graph.outputs] == ["y"]
    assert edit.dims(model.graph.outputs[0]) == [1, "s", 8]


def test_names_stay_on_the_values() -> None:
    model = graphs.parse("a = Sigmoid(x)\n y = Mul(x, a)", X, Y)
    graphs.apply(LiftRank(), model, s=3)
    CancelViews()(model)
    assert next(n for n in model.graph if n.op_type == "Sigmoid").outputs[0].name == "a"


def test_a_norm_keeps_its_gain() -> None:
    model = graphs.parse("y = RMSNormalization(x, gamma)", X, Y, gamma=graphs.rows(8))
    assert graphs.apply(LiftRank(), model, s=3)
    assert edit.known_dims(model.graph.initializers["gamma"]) == [8]


@pytest.mark.parametrize("axis", [-1, 2, 1])
def test_an_axis_counted_from_the_front_moves_along(axis: int) -> None:
    """Softmax over axis 2 of three is over axis 3 of four; otherwise it would run over the tokens."""
    model = graphs.parse(f"y = Softmax<axis={axis}>(x)", X, Y)
    assert graphs.apply(LiftRank(), model, s=3)


def test_constants_of_three_dimensions_broadcast_as_before() -> None:
    model = graphs.parse("y = Mul(x, table)", X, Y, table=graphs.rows(1, 1, 8))
    assert graphs.apply(LiftRank(), model, s=3)


@pytest.mark.parametrize(("body", "inputs", "outputs"), [
    ("y = Sigmoid(x)", "float[2,s,8] x", "float[2,s,8] y"),
    ("y = Sigmoid(x)", "float[1,1,s,8] x", "float[1,1,s,8] y"),
    ("y = Transpose<perm=[0,2,1]>(x)", X, "float[1,8,s] y"),
])
def test_other_ranks_batches_and_ops_are_left_alone(body: str, inputs: str, outputs: str) -> None:
    model = graphs.parse(body, inputs, outputs)
    assert not graphs.apply(LiftRank(), model, s=3)
