from __future__ import annotations

import graphs
import numpy as np
import onnx_ir as ir
import pytest

from edgeforge.graph import edit

X, Y = "float[1,s,8] x", "float[1,s,8] y"


def test_replace_keeps_the_outputs_name() -> None:
    model = graphs.parse("a = Relu(x)\n y = Neg(a)", X, Y)
    a, y = (n.outputs[0] for n in model.graph)
    edit.replace(y, a)
    assert model.graph.outputs[0] is a
    assert a.name == "y"


@pytest.mark.parametrize(("body", "outputs", "new"), [
    ("y = Relu(x)", Y, "x"), ("z = Relu(x)\n y = Neg(x)", f"float[1,s,8] z, {Y}", "z")])
def test_an_output_is_never_replaced_by_a_boundary_value(body: str, outputs: str, new: str) -> None:
    model = graphs.parse(body, X, outputs)
    values = ir.convenience.create_value_mapping(model.graph)
    with pytest.raises(ValueError, match=f"graph output y cannot be {new}"):
        edit.replace(values["y"], values[new])
    assert [v.name for v in model.graph.outputs][-1] == "y"


def test_take_over_hands_the_name_on() -> None:
    model = graphs.parse("a = Relu(x)\n y = Neg(a)", X, Y)
    relu, neg = model.graph
    new = edit.node_after(relu, "Sigmoid", [relu.outputs[0]], "other", [1, "s", 8])
    edit.take_over(relu.outputs[0], new)
    assert (new.name, relu.outputs[0].name) == ("a", "a/was")
    assert neg.inputs[0] is new


def test_the_same_constant_is_made_once_and_another_never_takes_its_name() -> None:
    model = graphs.parse("y = Relu(x)", X, Y)
    graph = model.graph
    assert edit.int_vector(graph, [1, -1]) is edit.int_vector(graph, [1, -1])
    first = edit.initializer(graph, "b", np.zeros(2, np.float32))
    assert edit.initializer(graph, "b", np.zeros(2, np.float32)) is first
    other = edit.initializer(graph, "b", np.ones(2, np.float32))
    assert other.name == "b_2"
    assert edit.initializer(graph, "b", np.zeros(2, np.float64)).name == "b_3"
    edit.initializer(graph, "c_2", np.zeros(1, np.float32))
    edit.initializer(graph, "c", np.zeros(1, np.float32))
    assert edit.initializer(graph, "c", np.ones(1, np.float32)).name == "c_3"


def test_only_user_counts_outputs_and_double_reads() -> None:
    model = graphs.parse("a = Relu(x)\n b = Add(a, a)\n c = Neg(b)\n y = Neg(c)", X, f"{Y}, float[1,s,8] c")
    a, b, c, _ = (n.outputs[0] for n in model.graph)
    assert edit.only_user(a) is None
    assert edit.only_user(b) is model.graph.node(2)
    assert edit.only_user(c) is None


def test_what_is_not_constant_is_none() -> None:
    model = graphs.parse("a = Relu(w)\n y = Add(x, a)", X, Y, w=graphs.rows(8))
    w, a = model.graph.initializers["w"], model.graph.node(0).outputs[0]
    assert edit.constant(w) is not None
    assert edit.constant(a) is None
    assert edit.scalar(w) is None
    assert edit.ints(w) is None
    assert edit.constant(None) is edit.scalar(None) is edit.ints(None) is None
