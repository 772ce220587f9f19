from __future__ import annotations

import graphs
import onnx_ir as ir
import pytest

from edgeforge.graph import requantize
from edgeforge.graph.views import CancelViews

AXIS = "axis = Constant<value = int64[1] {1}>()\n"


def _cancel(body: str, inputs: str = "float[1,s,8] x", outputs: str = "float[1,s,8] y") -> tuple[bool, ir.Model]:
    model = graphs.parse(AXIS + body, inputs, outputs)
    return graphs.apply(CancelViews(), model, s=3), model


def _ops(body: str, outputs: str = "float[1,s,8] y") -> list[str]:
    return graphs.ops(_cancel(body, outputs=outputs)[1])


def test_a_view_and_its_inverse_vanish() -> None:
    assert _ops("a = Unsqueeze(x, axis)\n b = Squeeze(a, axis)\n y = Relu(b)") == ["Relu"]
    assert _ops("a = Transpose<perm=[0,2,1]>(x)\n b = Transpose<perm=[0,2,1]>(a)\n y = Relu(b)") == ["Relu"]


def test_views_in_a_row_become_one() -> None:
    body = "a = Unsqueeze(x, axis)\n b = Unsqueeze(a, axis)\n c = Relu(b)\n d = Squeeze(c, axis)\n y = Squeeze(d, axis)"
    assert _ops(body) == ["Reshape", "Relu", "Reshape"]


def test_transposes_in_a_row_are_composed() -> None:
    _, model = _cancel("a = Transpose<perm=[1,2,0]>(x)\n b = Transpose<perm=[1,0,2]>(a)\n y = Relu(b)",
                       "float[2,s,8] x", "float[8,s,2] y")
    assert graphs.ops(model) == ["Transpose", "Relu"]
    assert list(model.graph.node(0).attributes["perm"].as_ints()) == [2, 1, 0]


def test_a_transpose_of_ones_is_a_reshape_and_a_true_one_stays() -> None:
    assert _ops("a = Transpose<perm=[1,0,2]>(x)\n y = Relu(a)", "float[s,1,8] y") == ["Reshape", "Relu"]
    assert _ops("a = Transpose<perm=[0,2,1]>(x)\n y = Relu(a)", "float[1,8,s] y") == ["Transpose", "Relu"]


def test_a_transpose_without_perm_reverses() -> None:
    assert _ops("a = Transpose(x)\n b = Transpose(a)\n y = Relu(b)") == ["Relu"]


def test_two_open_dimensions_are_no_constant_reshape() -> None:
    model = graphs.parse("a = Transpose<perm=[0,2,1]>(x)\n y = Relu(a)", "float[s,1,t] x", "float[s,t,1] y")
    assert not graphs.apply(CancelViews(), model, s=3, t=2)
    assert graphs.ops(model) == ["Transpose", "Relu"]


BOUNDS = """
    start = Constant<value = int64[1] {{{0}}}>()
    stop = Constant<value = int64[1] {{{1}}}>()
    step = Constant<value = int64[1] {{{2}}}>()
    last = Constant<value = int64[1] {{2}}>()
    a = Slice(x, start, stop, last, step)
    y = Relu(a)
"""


def test_a_slice_that_takes_everything_goes() -> None:
    assert _ops(BOUNDS.format(0, 9223372036854775807, 1)) == ["Relu"]


def test_a_slice_that_reverses_or_takes_less_stays() -> None:
    """Reversed, the shape is the same and nothing else is."""
    assert _ops(BOUNDS.format(-1, -9223372036854775807, -1)) == ["Slice", "Relu"]
    assert _ops(BOUNDS.format(1, 8, 1), "float[1,s,7] y") == ["Slice", "Relu"]


@pytest.mark.parametrize("body", [
    "y = Identity(x)",
    "a = Unsqueeze(x, axis)\n y = Squeeze(a, axis)",
    "a = Transpose<perm=[0,2,1]>(x)\n y = Transpose<perm=[0,2,1]>(a)",
])
def test_input_and_output_never_become_one_value(body: str) -> None:
    """Then one of the two names would be lost."""
    _, model = _cancel(body)
    assert [v.name for v in model.graph.inputs] == ["x"]
    assert [v.name for v in model.graph.outputs] == ["y"]
    assert len(graphs.ops(model)) == 1


def test_two_outputs_never_become_one_value() -> None:
    _, model = _cancel("z = Relu(x)\n a = Unsqueeze(z, axis)\n y = Squeeze(a, axis)",
                       outputs="float[1,s,8] z, float[1,s,8] y")
    assert [v.name for v in model.graph.outputs] == ["z", "y"]


def test_identity_goes_and_a_requantize_stays() -> None:
    model = graphs.parse("a = Identity(x)\n b = Identity(a)\n y = Relu(b)", "float[1,s,8] x", "float[1,s,8] y")
    model.graph.node(1).metadata_props[requantize.ROLE] = requantize.REQUANTIZE
    graphs.apply(CancelViews(), model, s=3)
    assert graphs.ops(model) == ["Identity", "Relu"]


def test_a_step_takes_the_name_of_what_it_led_to() -> None:
    """q_proj/Conv -> q_proj/Transpose -> q_proj: when the views go, the value that stays is q_proj."""
    model = graphs.parse(AXIS + "a = Relu(x)\n b = Unsqueeze(a, axis)\n c = Squeeze(b, axis)\n y = Relu(c)",
                         "float[1,s,8] x", "float[1,s,8] y")
    for node, name in zip(model.graph, ("proj/Relu", "proj/Unsqueeze", "proj"), strict=False):
        node.outputs[0].name = name
    graphs.apply(CancelViews(), model, s=3)
    assert [n.outputs[0].name for n in model.graph] == ["proj", "y"]
