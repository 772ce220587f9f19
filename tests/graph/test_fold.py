from __future__ import annotations

import graphs
import numpy as np
import onnx_ir as ir
import pytest

from edgeforge.errors import EdgeForgeError
from edgeforge.graph import fold


def _norms(size: int) -> ir.Model:
    """Two norms with equal gains, a tied table, and shape arithmetic."""
    body = """
        two = Constant<value = int64[1] {2}>()
        one = Constant<value = int64[1] {1}>()
        three = Add(two, one)
        x = Gather(table, ids)
        a = RMSNormalization(x, first)
        b = RMSNormalization(a, second)
        turned = Transpose<perm=[1,0]>(table)
        y = MatMul(b, turned)
        z = Unsqueeze(y, three)
    """
    return graphs.parse(body, "int64[1,2] ids", "float[1,2,9,1] z", table=graphs.rows(9, size),
                        first=np.ones(size, np.float32), second=np.ones(size, np.float32))


def _run(model: ir.Model) -> dict[str, np.ndarray]:
    return graphs.run(model, {"ids": np.array([[4, 0]])})


@pytest.mark.parametrize("size", [8, 64])
def test_equal_parameters_stay_apart_and_tied_ones_together(size: int) -> None:
    """Also tiny ones: a gain of 8 floats is as small as plumbing."""
    model = _norms(size)
    before = _run(model)
    folded = fold.fold(model)
    graphs.same(before, _run(folded))
    names = [v.name for v in folded.graph.initializers.values() if v.uses()]
    assert {"table", "first", "second"} <= set(names)
    assert [n.inputs[1].name for n in folded.graph if n.op_type == "RMSNormalization"] == ["first", "second"]
    assert len(list(folded.graph.initializers["table"].uses())) == 2
    assert "Transpose" in graphs.ops(folded), "a transposed copy of a parameter was made"
    assert "Add" not in graphs.ops(folded), "shape arithmetic was not folded"


def test_the_input_model_is_left_as_it_was() -> None:
    model = _norms(8)
    inputs, parameters = [v.name for v in model.graph.inputs], set(model.graph.initializers)
    fold.fold(model)
    assert [v.name for v in model.graph.inputs] == inputs
    assert parameters <= set(model.graph.initializers)


def test_tensors_are_shared_not_copied() -> None:
    model = _norms(64)
    folded = fold.fold(model)
    assert folded.graph.initializers["table"].const_value is model.graph.initializers["table"].const_value


def test_folding_twice_changes_nothing() -> None:
    once = fold.fold(_norms(8))
    text = str(once.graph)
    assert str(fold.fold(once).graph) == text


def test_symbolic_dimensions_survive() -> None:
    model = graphs.parse("y = Relu(x)", "float[1,ar,past] x", "float[1,ar,past] y")
    folded = fold.fold(model)
    assert [str(d.value if not isinstance(d, int) else d) for d in folded.graph.inputs[0].shape] == ["1", "ar", "past"]


def test_quantized_weights_keep_their_dequantizer() -> None:
    """W -> Q -> DQ -> MatMul: folded into floats it would be four times the size, and no longer an integer model."""
    body = """
        q = QuantizeLinear(w, scale, zero)
        w2 = DequantizeLinear(q, scale, zero)
        w3 = DequantizeLinear(codes, scale, zero)
        a = MatMul(x, w2)
        y = MatMul(a, w3)
    """
    model = graphs.parse(body, "float[1,2,4] x", "float[1,2,4] y", w=graphs.rows(4, 4), scale=np.float32(0.1),
                         zero=np.int8(0), codes=np.arange(16, dtype=np.int8).reshape(4, 4))
    folded = fold.fold(model)
    assert graphs.ops(folded).count("DequantizeLinear") == 2


def test_a_folder_that_renames_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def simplify(proto: object, **_: object) -> tuple[object, bool]:
        model = ir.from_proto(proto)
        model.graph.node(-1).outputs[0].name = "other"
        return ir.to_proto(model), True

    monkeypatch.setattr(fold.onnxsim, "simplify", simplify)
    with pytest.raises(EdgeForgeError, match="inputs or outputs"):
        fold.fold(_norms(8))

    def rename(proto: object, **_: object) -> tuple[object, bool]:
        model = ir.from_proto(proto)
        model.graph.node(-2).outputs[0].name = "other"
        return ir.to_proto(model), True

    monkeypatch.setattr(fold.onnxsim, "simplify", rename)
    with pytest.raises(EdgeForgeError, match="renamed values: "):
        fold.fold(_norms(8))


def test_a_small_weight_is_a_parameter_too() -> None:
    """16 floats are as few bytes as a shape; folded, the parameter would lose its name to `turned`."""
    body = "turned = Transpose<perm=[1,0]>(w)\n y = MatMul(x, turned)"
    folded = fold.fold(graphs.parse(body, "float[1,2,4] x", "float[1,2,4] y", w=graphs.rows(4, 4)))
    assert graphs.ops(folded) == ["Transpose", "MatMul"]
    assert set(folded.graph.initializers) == {"w"}
