"""A model on disk, at one width, and made only of what targets run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import graphs
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeforge.errors import EdgeForgeError, UnsupportedError
from edgeforge.graph import edit, legal, store
from edgeforge.graph.bind import bind
from edgeforge.targets import HTP, PLAIN

X, Y = "float[1,s,8] x", "float[1,s,8] y"


# -- store -----------------------------------------------------------------------------------------------

def test_large_weights_lie_in_model_data_and_small_constants_inside(tmp_path: Path) -> None:
    model = graphs.parse("a = MatMul(x, w)\n y = Add(a, b)", "float[1,s,64] x", "float[1,s,64] y",
                         w=graphs.rows(64, 64), b=graphs.rows(64))
    weights = graphs.rows(64, 64)
    path = store.save(model, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.data", "model.onnx"]
    assert path.stat().st_size < 2048
    external = {t.name: t.data_location for t in onnx.load(path, load_external_data=False).graph.initializer}
    assert external == {"w": onnx.TensorProto.EXTERNAL, "b": onnx.TensorProto.DEFAULT}
    np.testing.assert_array_equal(edit.constant(store.load(tmp_path).graph.initializers["w"]), weights)


def test_a_name_used_twice_is_refused(tmp_path: Path) -> None:
    model = graphs.parse("a = Relu(x)\n y = Neg(a)", X, Y)
    model.graph.node(0).outputs[0].name = "x"
    with pytest.raises(EdgeForgeError, match="'x' is used twice"):
        store.save(model, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(EdgeForgeError, match=r"model\.onnx does not exist"):
        store.load(tmp_path)


# -- bind ------------------------------------------------------------------------------------------------

BODY = """
    shape = Constant<value = int64[4] {1, -1, 2, 4}>()
    start = Constant<value = int64[1] {1}>()
    stop = Constant<value = int64[1] {9223372036854775807}>()
    axis = Constant<value = int64[1] {1}>()
    a = Reshape(x, shape)
    b = Slice(past, start, stop, axis)
    y = Concat<axis=1>(b, a)
"""


def _symbolic(y: str = "ar + past") -> ir.Model:
    model = graphs.parse(BODY, "float[1,ar,8] x, float[1,past,2,4] past", "float[1,t,2,4] y")
    edit.set_shape(model.graph.node(0).outputs[0], [1, "ar", 2, 4])
    edit.set_shape(model.graph.node(1).outputs[0], [1, "past", 2, 4])
    edit.set_shape(model.graph.outputs[0], [1, y, 2, 4])
    return model


@pytest.mark.parametrize(("ar", "cl"), [(1, 9), (4, 9)])
def test_every_dimension_becomes_a_number(ar: int, cl: int) -> None:
    model = bind(_symbolic(), ar, cl)
    for value in [*model.graph.inputs, *(o for n in model.graph for o in n.outputs)]:
        assert all(isinstance(d, int) for d in edit.known_dims(value)), value.name
    assert edit.known_dims(model.graph.outputs[0]) == [1, cl, 2, 4]
    reshape, cut, _ = model.graph
    assert edit.ints(reshape.inputs[1]) == [1, ar, 2, 4]
    assert edit.ints(cut.inputs[2]) == [cl - ar], "2^63-1 does not fit 32 bits"
    again = str(model.graph)
    assert str(bind(model, ar, cl).graph) == again


@pytest.mark.parametrize("dim", ["seq_len", "ar + batch", "2*ar"])
def test_an_open_dimension_is_refused_by_name(dim: str) -> None:
    with pytest.raises(EdgeForgeError, match="y has an open dimension") as caught:
        bind(_symbolic(dim), 4, 9)
    assert repr(dim) in caught.value.message


# -- legal -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("body", "inputs", "outputs", "named"), [
    ("a = Relu(x)\n b = IsNaN(a)\n y = Cast<to=1>(b)", X, Y, "b: op IsNaN"),
    ("a = Shape(x)\n y = Expand(x, a)", X, Y, "a: op Shape"),
    ("y = DynamicQuantizeLinear(x)", X, "uint8[1,s,8] y", "y: op DynamicQuantizeLinear"),
    ("y = Unsqueeze(x, axes)", X, "float[1,1,1,1,s,8] y", "y: Unsqueeze makes 6 dimensions"),
])
def test_what_no_target_runs_is_refused_with_its_node(body: str, inputs: str, outputs: str, named: str) -> None:
    parameters = {"axes": np.array([0, 1, 2])} if "axes" in body else {}
    model = graphs.parse(body, inputs, outputs, **parameters)
    with pytest.raises(UnsupportedError, match=named):
        legal.check(model.graph, HTP)


def test_rotary_embedding_is_for_those_who_do_not_lower_it() -> None:
    model = graphs.parse("y = RotaryEmbedding(x, c, c)", "float[1,2,s,8] x, float[1,s,4] c", "float[1,2,s,8] y")
    legal.check(model.graph, PLAIN)
    with pytest.raises(UnsupportedError, match="RotaryEmbedding"):
        legal.check(model.graph, HTP)


def test_other_domains_are_refused() -> None:
    model = graphs.parse("y = Relu(x)", X, Y)
    model.graph.node(0).domain = "com.microsoft"
    with pytest.raises(UnsupportedError, match="op Relu is left"):
        legal.check(model.graph, HTP)


@pytest.mark.parametrize("damage", [lambda raw: b"", lambda raw: b"no protobuf", lambda raw: raw[: len(raw) // 2]])
def test_a_damaged_model_is_named(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = store.save(graphs.parse("y = Relu(x)", X, Y), tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(EdgeForgeError, match=r"model\.onnx is not an ONNX model, or is damaged"):
        store.load(tmp_path)
