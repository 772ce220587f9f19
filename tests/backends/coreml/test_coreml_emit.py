"""The form of what is emitted: what the Neural Engine's rules ask for, and a name for what has no lowering."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import coreml_tiny
import graphs
import numpy as np
import pytest
from coreml_tiny import Emitted
from edgeforge_runtime.manifest import LOGITS

from edgeforge.backends.coreml import decoder, head, package
from edgeforge.backends.coreml.emit import emit
from edgeforge.backends.coreml.interpret.program import Function
from edgeforge.backends.coreml.interpret.run import Interpreter
from edgeforge.backends.coreml.lint import lint
from edgeforge.backends.coreml.target import MOST_OUTPUTS
from edgeforge.encodings import Table
from edgeforge.errors import UnsupportedError
from edgeforge.graph import bind, edit


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Emitted:
    return coreml_tiny.emit(tmp_path_factory.mktemp("llama"), *coreml_tiny.graph("llama"))


def _kinds(function: Function) -> Counter[str]:
    return Counter(op.type for op in function.ops)


def test_values_are_float16_of_four_axes_at_most(llama: Emitted) -> None:
    for function in coreml_tiny.program(llama).values():
        shapes = [o.shape for op in function.ops if op.type != "const" for o in op.outputs]
        assert max(map(len, shapes)) == 4
        types = Counter(o.type for op in function.ops for o in op.outputs)
        assert "FLOAT32" not in types
        assert types["FLOAT16"] > 100


def test_hidden_states_stay_channels_first(llama: Emitted) -> None:
    """Copies that are left: the embedding's rows, cos and sin once, and new values into their cache's layout."""
    functions = coreml_tiny.program(llama)
    layers, values = 2, 2
    assert _kinds(functions["prefill"])["transpose"] == 3 + layers * values
    assert _kinds(functions["decode"])["transpose"] == 0, "of one token no copy is left"


def test_prefill_makes_the_last_token_s_logits_alone(llama: Emitted) -> None:
    prefill = coreml_tiny.program(llama)["prefill"]
    final = next(op for op in prefill.ops if op.name == "lm_head_Conv")
    assert final.outputs[0].shape == (1, 160, 1, 1)
    shapes = {o.name: o.shape for op in prefill.ops for o in op.outputs}
    assert shapes[LOGITS] == (1, 1, 160)
    assert shapes["past_key_0_out"] == (2, 1, 8, 8), "caches keep every token"


def test_inputs_and_outputs_are_the_contract_s(llama: Emitted) -> None:
    """One past length for both functions."""
    for name, function in coreml_tiny.program(llama).items():
        ar = coreml_tiny.WIDTHS[name]
        shapes = llama.made.decoder.shapes(ar, 48 + ar) | {LOGITS: (1, 1, 160)}
        assert {i.name: i.shape for i in function.inputs} == {n: shapes[n] for n in llama.made.decoder.input_names()}
        assert list(function.outputs) == llama.made.decoder.output_names()
        assert {i.type for i in function.inputs if i.name != "input_ids"} == {"FLOAT16"}


def test_nothing_is_known_to_leave_the_neural_engine(llama: Emitted) -> None:
    assert lint(coreml_tiny.program(llama)) == []


def test_silu_is_one_op_and_norms_are_layer_norms(llama: Emitted) -> None:
    for function in coreml_tiny.program(llama).values():
        kinds = _kinds(function)
        assert (kinds["silu"], kinds["sigmoid"], kinds["layer_norm"]) == (2, 0, 5)


def test_the_same_graph_makes_the_same_bytes(llama: Emitted, tmp_path: Path) -> None:
    decoder.write(llama.model.clone(), Table(), {}, coreml_tiny.WIDTHS, 48, tmp_path / "again.mlpackage")
    for file in (package.MODEL, package.WEIGHTS, Path("Manifest.json")):
        assert (tmp_path / "again.mlpackage" / file).read_bytes() == (llama.package / file).read_bytes(), file


def test_pieces_of_a_head_cover_every_word() -> None:
    _, model = coreml_tiny.graph("llama")
    cut = model.clone()
    head.divide(cut, Table(), 70)
    names = [str(v.name) for v in cut.graph.outputs]
    assert names[:3] == ["logits_0", "logits_1", "logits_2"]
    sizes = [edit.known_dims(v)[-1] for v in cut.graph.outputs[:3]]
    assert sizes == [64, 64, 32]
    whole = edit.constant(model.graph.initializers["lm_head.weight"])
    parts = [edit.constant(cut.graph.initializers[f"lm_head.weight/h{i}"]) for i in range(3)]
    np.testing.assert_array_equal(np.concatenate([p for p in parts if p is not None]), whole)
    assert "lm_head.weight" not in {str(v.name) for n in cut.graph for v in n.inputs if v is not None}


def test_what_has_no_lowering_is_named() -> None:
    model = graphs.parse("a = Relu(x)\n b = Sin(a)\n y = Neg(b)", "float[1,1,4,8] x", "float[1,1,4,8] y")
    with pytest.raises(UnsupportedError, match=r"^b: Sin has no lowering to Core ML") as caught:
        emit(model.graph, {})
    assert "RMSNormalization" in caught.value.hint


@pytest.mark.parametrize(("body", "inputs", "named"), [
    ("y = RMSNormalization<axis=2>(x, g)", "float[1,1,4,8] x, float[4,8] g", "y: RMSNormalization over axis 2"),
    ("y = Softmax<axis=-1>(x)\n z = MatMul(y, v)", "float[1,3,4,8] x, float[1,3,8,2] v", "z: .* several heads"),
    ("g = Neg(a)\n y = LayerNormalization(x, g)", "float[1,1,4,8] x, float[8] a", "y: a norm whose gain is computed"),
    ("b = Neg(a)\n y = LayerNormalization(x, c, b)", "float[1,1,4,8] x, float[8] a, float[8] c", "y: .* whose gain is"),
    ("y = Conv(x, w)", "float[1,4,5,5] x, float[2,4,3,3] w", "w: a product reads a weight that is no constant"),
])
def test_forms_that_are_not_lowered_are_named(body: str, inputs: str, named: str) -> None:
    out = body.splitlines()[-1].split()[0]
    model = graphs.parse(body, inputs, f"float[a,b,c,d] {out}")
    for node in model.graph:
        if node.outputs[0].name == out:
            edit.set_shape(node.outputs[0], [1, 3, 4, 2] if out == "z" else [1, 1, 4, 8])
    with pytest.raises(UnsupportedError, match=named):
        emit(model.graph, {})


def test_a_wide_product_that_is_no_head_is_refused() -> None:
    wide = MOST_OUTPUTS + 1
    model = graphs.parse("y = Conv(x, w)", "float[1,2,1,4] x", f"float[1,{wide},1,4] y",
                         w=np.zeros((wide, 2, 1, 1), np.float32))
    with pytest.raises(UnsupportedError, match=rf"y: {wide} outputs of one product, and the Neural Engine takes 16384"):
        emit(model.graph, {})


def test_a_square_constant_read_in_two_arrangements(tmp_path: Path) -> None:
    """Behind a Transpose the values lie the other way round, and the constant with them: two blobs of one shape."""
    square = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    model = graphs.parse("a = Mul(x, w)\n t = Transpose<perm=[0,1,3,2]>(x)\n y = Mul(t, w)",
                         "float[1,1,4,4] x", "float[1,1,4,4] a, float[1,1,4,4] y", w=square)
    path = tmp_path / "square.mlpackage"
    package.write({"main": emit(model.graph, {})}, "main", path, {})
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 1, 4, 4)
    made = Interpreter.open(path, "float32").run("main", {"x": x})
    np.testing.assert_allclose(made["a"], x * square, rtol=1e-3)
    np.testing.assert_allclose(made["y"], x.transpose(0, 1, 3, 2) * square, rtol=1e-3)


def test_a_graph_without_logits_is_refused() -> None:
    model = graphs.parse("y = Relu(x)", "float[1,1,4,8] x", "float[1,1,4,8] y")
    with pytest.raises(UnsupportedError, match="no output 'logits'"):
        head.divide(model, Table(), 10)


def test_names_are_metadata_a_reader_understands(llama: Emitted) -> None:
    from edgeforge.backends.coreml import mil

    spec = mil.proto.Model_pb2.Model.FromString((llama.package / package.MODEL).read_bytes())
    assert dict(spec.description.metadata.userDefined) == {
        "edgeforge.past": "48", "edgeforge.prefill": "8", "edgeforge.decode": "1"}
    assert spec.description.defaultFunctionName == "decode"
    assert spec.specificationVersion == 9, "iOS 18"
    manifest = json.loads((llama.package / "Manifest.json").read_text())
    for entry in manifest["itemInfoEntries"].values():
        assert (llama.package / "Data" / entry["path"]).exists()


def test_binding_is_what_makes_the_two_functions_differ(llama: Emitted) -> None:
    """The same graph, bound twice: the same products in both."""
    static = bind.bind(llama.model.clone(), 4, 20)
    assert all(isinstance(d, int) for n in static.graph for v in n.outputs for d in edit.known_dims(v))
    kinds = [_kinds(f) for f in coreml_tiny.program(llama).values()]
    for op in ("conv", "matmul", "softmax", "layer_norm"):
        assert kinds[0][op] == kinds[1][op] > 0
