"""Any ONNX file at the door: what is let in is understood, what is not is named, and nothing is half-written."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeforge.errors import CheckpointError, EdgeForgeError, UnsupportedError
from edgeforge.graph import edit, enter
from edgeforge.graph.optimize_plain import optimize
from edgeforge.targets import HTP

X, Y = "float[1,4] x", "float[1,4] y"


def file(folder: Path, body: str, inputs: str = X, outputs: str = Y, opset: int = 21, **constants: np.ndarray) -> Path:
    """An .onnx file from ONNX text."""
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}, "other" : 1]> g ({inputs}) => ({outputs}) {{ {body} }}')
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    path = folder / "f.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def refused(path: Path) -> EdgeForgeError:
    with pytest.raises((CheckpointError, UnsupportedError)) as caught:
        optimize(enter.read(path), HTP)
    assert str(path) in caught.value.message or caught.value.hint
    return caught.value


@pytest.mark.parametrize(("content", "said"), [
    (b"", "is empty"), (b"PK\x03\x04 nothing of ours", "not an ONNX file"), (b"\x08\x0a", "it has no graph"),
    (b"\n" * 40, "not an ONNX"), (b"\xff" * 64, "not an ONNX file")])
def test_what_is_no_onnx_file_is_called_so(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "f.onnx"
    path.write_bytes(content)
    assert said in refused(path).message


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = file(tmp_path, "a = Mul(x, k)\n y = Add(a, k)", k=np.ones(300, np.float32)[:4])
    whole = path.read_bytes()
    for length in range(0, len(whole) - 1, 3):
        path.write_bytes(whole[:length])
        with pytest.raises(EdgeForgeError):
            optimize(enter.read(path), HTP)


def test_a_folder_and_nothing_are_named(tmp_path: Path) -> None:
    assert "is not a file" in refused(tmp_path).message
    assert "No such file" in refused(tmp_path / "none.onnx").message


def test_a_file_beyond_protobufs_limit_is_told_about_external_data(tmp_path: Path) -> None:
    path = tmp_path / "big.onnx"
    with path.open("wb") as stream:
        stream.truncate(1 << 31)  # a hole: no bytes on disk
    assert "external data" in refused(path).hint


@pytest.mark.parametrize(("body", "said"), [
    ("a = Relu(b)\n b = Relu(a)\n y = Add(a, x)", "topologically sorted"),
    ("y = Relu(x)\n y = Abs(x)", "y"),
    ("y = Relu(z)", "z"),
    ("y = Nonsense(x)", "Nonsense"),
])
def test_an_invalid_graph_is_refused_with_the_checkers_words(tmp_path: Path, body: str, said: str) -> None:
    error = refused(file(tmp_path, body))
    assert "not a valid ONNX graph" in error.message
    assert said in error.message


@pytest.mark.parametrize(("body", "outputs", "said"), [
    ("y = MatMul(x, w)", "float[1,11] y", "differ in dimension 1: (10) vs (11)"),
    ("y = MatMul(w, x)", "float[4,4] y", "Incompatible dimensions"),
    ("y = Reshape(x, s)", "float[1,4] y", "differ in dimension 0: (2) vs (1)"),
    ("a = Add(x, w)\n y = Relu(a)", "float[4,10] y", "Incompatible dimensions"),
])
def test_shapes_that_cannot_be_are_refused_at_the_door(tmp_path: Path, body: str, outputs: str, said: str) -> None:
    """They went through six stages and died in the compiler."""
    constants = {"w": np.ones((4, 10), np.float32), "s": np.array([2, 2])}
    used = {k: v for k, v in constants.items() if k in re.findall(r"\w+", body)}
    with pytest.raises(CheckpointError) as caught:
        enter.read(file(tmp_path, body, outputs=outputs, **used))
    assert "not a valid ONNX graph" in caught.value.message
    assert said in caught.value.message


@pytest.mark.parametrize(("number", "body", "said"), [
    (np.nan, "y = MatMul(x, w)", "tensor 'w' holds NaN"), (np.inf, "y = MatMul(x, w)", "tensor 'w' holds infinity"),
    (np.nan, "a = Add(w, x)\n y = ReduceMax<keepdims=0>(a, zero)\n", "tensor 'w' holds NaN"),
    (-np.inf, "a = Add(w, x)\n y = ReduceMax<keepdims=0>(a, zero)\n", "")])
@pytest.mark.parametrize("outside", [False, True])
def test_a_weight_that_is_no_number_is_named(tmp_path: Path, number: float, body: str, said: str,
                                             outside: bool) -> None:
    """It was a gate that failed at -inf dB. Infinity in a mask is usual."""
    weight = np.ones((4, 4), np.float32)
    weight[1, 2] = number
    constants = {"zero": np.array([0])} if "zero" in body else {}
    path = file(tmp_path, body, outputs="float[1,4] y" if "MatMul" in body else "float[4] y", w=weight, **constants)
    if outside:
        onnx.save(onnx.load(path), path, save_as_external_data=True, size_threshold=0, location="w.data")
    if said:
        with pytest.raises(CheckpointError) as caught:
            enter.read(path)
        assert said in caught.value.message
    else:
        enter.read(path)


def test_an_output_that_states_no_shape_is_no_error(tmp_path: Path) -> None:
    path = file(tmp_path, "y = Relu(x)")
    model = onnx.load(path)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    path.write_bytes(model.SerializeToString())
    assert [edit.dims(v) for v in optimize(enter.read(path), HTP).graph.outputs] == [[1, 4]]


def test_an_initializer_twice_is_refused(tmp_path: Path) -> None:
    path = file(tmp_path, "y = Add(x, k)", k=np.ones(4, np.float32))
    model = onnx.load(path)
    model.graph.initializer.append(model.graph.initializer[0])
    path.write_bytes(model.SerializeToString())
    assert "'k' is there twice" in refused(path).message


BRANCH = "<g () => (float[1,4] a) { a = Relu(x) }>"


@pytest.mark.parametrize(("body", "inputs", "said"), [
    ("q, t, u = DynamicQuantizeLinear(x)\n y = Cast<to=1>(q)", X, "already quantized"),
    ("q = QuantizeLinear(x, s, z)\n y = DequantizeLinear(q, s, z)", X, "already quantized"),
    ("y = other.Thing(x)", X, "domain other"),
    ("y = SequenceAt(a, i)", "seq(float[1,4]) a", "SequenceType"),
    ("a = IsInf(x)\n b = Cast<to=1>(a)\n y = Add(b, x)", X, "op IsInf is left"),
    ("y = Erf(x)", X, "op Erf is left"),
    ("a = NonZero(x)\n b = Cast<to=1>(a)\n c = ReduceSum<keepdims=1>(b)\n y = Add(c, x)", X, "NonZero"),
    ("a = Cast<to=11>(x)\n b = Add(a, a)\n y = Cast<to=1>(b)", X, "DOUBLE"),
    ("a = Greater(x, zero)\n b = Gather<axis=1>(a, ix)\n y = Cast<to=1>(b)", X, "Gather on bool"),
    ("a = Reshape(x, six)\n b = Transpose<perm=[5,4,3,2,1,0]>(a)\n y = Reshape(b, two)", X, "6 dimensions"),
])
def test_what_an_npu_does_not_do_is_refused_with_its_node(tmp_path: Path, body: str, inputs: str, said: str) -> None:
    constants = {
        "s": np.float32(0.1), "z": np.uint8(0), "i": np.int64(0), "zero": np.zeros(4, np.float32),
        "ix": np.array([3, 1, 1, 0]), "six": np.array([1, 2, 1, 2, 1, 1]), "two": np.array([1, 4])}
    used = {k: v for k, v in constants.items() if k in re.findall(r"\w+", body)}
    error = refused(file(tmp_path, body, inputs, **used))
    assert said in error.message


def test_control_flow_is_refused(tmp_path: Path) -> None:
    branches = [helper.make_graph([helper.make_node(op, ["x"], ["b"])], op,
                                  [], [helper.make_tensor_value_info("b", 1, [1, 4])]) for op in ("Relu", "Abs")]
    node = helper.make_node("If", ["c"], ["y"], name="choice", then_branch=branches[0], else_branch=branches[1])
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("c", TensorProto.BOOL, []),
                                            helper.make_tensor_value_info("x", 1, [1, 4])],
                              [helper.make_tensor_value_info("y", 1, [1, 4])])
    path = tmp_path / "f.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)],
                                       ir_version=10).SerializeToString())
    assert "'choice' (If): control flow" in refused(path).message.replace("choice (", "'choice' (")


@pytest.mark.parametrize(("inputs", "said", "hint"), [
    ("float[1,seq_len,4] x", "input 'x' dim 1 'seq_len' is open", "the calibration data has 7 there"),
    ("float[batch,7,4] x", "input 'x' dim 0 'batch' is open", "1 is usual for a batch"),
    ("float16[1,7,4] x", "input 'x' is FLOAT16", "float32"),
    ("double[1,7,4] x", "input 'x' is DOUBLE", "float32"),
    ("string[1,7,4] x", "input 'x' is STRING", ""),
    ("float[1,0,4] x", "input 'x' dim 1 is 0", ""),
])
def test_inputs_that_cannot_be_compiled_are_named(tmp_path: Path, inputs: str, said: str, hint: str) -> None:
    path = file(tmp_path, "y = Identity(x)", inputs, inputs.replace(" x", " y"))
    with pytest.raises(UnsupportedError) as caught:
        enter.read(path, {"x": (7, 4)})
    assert said in caught.value.message
    assert hint in caught.value.hint


def test_an_input_without_a_shape_is_named(tmp_path: Path) -> None:
    path = file(tmp_path, "y = Relu(x)")
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    path.write_bytes(model.SerializeToString())
    assert "input 'x' has no shape" in refused(path).message


@pytest.mark.parametrize(("body", "outputs", "said"), [
    ("y = Relu(x)", f"{Y}, {X}", "output 'x' is an input too"),
    ("y = Relu(x)", f"{Y}, float[4] k", "output 'k' is a constant"),
    ("y = Relu(x)\n c = Constant<value_floats = [1.0, 2.0]>()", f"{Y}, float[2] c", "output 'c' is a constant"),
    ("y = Relu(x)", f"{Y}, {Y}", "output 'y' is declared twice"),
    ("y = Relu(x)\n c = Add(k, k)", f"{Y}, float[4] c", "c: this output is the same whatever the inputs are"),
])
def test_outputs_that_nothing_computes_are_named(tmp_path: Path, body: str, outputs: str, said: str) -> None:
    """They were a KeyError in the middle of the build."""
    assert said in refused(file(tmp_path, body, outputs=outputs, k=np.ones(4, np.float32))).message


@pytest.mark.parametrize(("opset", "good"), [(11, False), (16, False), (17, True), (24, True), (25, False)])
def test_opsets(tmp_path: Path, opset: int, good: bool) -> None:
    path = file(tmp_path, "y = Relu(x)", opset=opset)
    if good:
        assert enter.read(path).graph.opset_imports[""] == max(opset, 23)
    else:
        assert f"opset {opset}; 17 to 24" in refused(path).message


def test_reductions_and_splits_of_opset_17_say_what_they_meant(tmp_path: Path) -> None:
    body = "a, b = Split<axis=1>(x)\n c = ReduceMax<axes=[1], keepdims=1>(a)\n y = Concat<axis=1>(c, b, c)"
    path = file(tmp_path, body, opset=17)
    model = enter.read(path)
    split, reduce, _ = model.graph
    assert split.attributes["num_outputs"].as_int() == 2
    assert "axes" not in reduce.attributes
    assert edit.ints(reduce.inputs[1]) == [1]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_functions_are_inlined_and_every_kind_of_constant_is_read(tmp_path: Path) -> None:
    text = '''
        <ir_version: 10, opset_import: ["" : 21, "mine" : 1]>
        g (float[1,4] x) => (float[1,4] y) {
          a = Constant<value_float = 2.0>()
          b = Constant<value_floats = [1.0, 2.0, 3.0, 4.0]>()
          c = Constant<value_ints = [1, 4]>()
          d = Constant<value_int = 1>()
          e = mine.twice(x)
          f = Mul(e, a)
          h = Add(f, b)
          i = Reshape(h, c)
          j = Cast<to = 1>(d)
          y = Add(i, j)
        }
        <domain: "mine", opset_import: ["" : 21]> twice (p) => (q) { q = Add(p, p) }'''
    path = tmp_path / "f.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    model = optimize(enter.read(path), HTP)
    assert not model.functions
    assert {n.op_type for n in model.graph} <= {"Add", "Mul"}


def test_slices_to_the_end_of_int64_and_negative_ones_stay_inside_the_dimension(tmp_path: Path) -> None:
    """C19: narrowed to 32 bits, 2^63-1 would be -1, and the last row lost."""
    path = file(tmp_path, "a = Slice(x, s, e, ax)\n b = Slice(a, n, e, ax)\n y = Gather<axis=1>(b, last)",
                "float[1,9,4] x", "float[1,4] y", s=np.array([1]), e=np.array([9223372036854775807]), ax=np.array([1]),
                n=np.array([-3]), last=np.array(-1))
    model = optimize(enter.read(path), HTP)
    bounds = [edit.slice_bounds(n) for n in model.graph if n.op_type == "Slice"]
    assert bounds == [{1: (1, 9)}, {1: (5, 8)}]
    assert max(max(edit.ints(v) or []) for n in model.graph if n.op_type == "Slice" for v in n.inputs[1:]) < 1 << 31
    gather = next(n for n in model.graph if n.op_type == "Gather")
    assert edit.ints(gather.inputs[1]) == [2]


def test_a_forgotten_mask_buffer_is_named(tmp_path: Path) -> None:
    """C27: a mask for the longest sequence, cut to this one, is cut before anybody counts it; uncut, it is refused."""
    buffer = np.tril(np.ones((3000, 3000), np.float32))
    cut = "a = Slice(mask, s, e)\n y = Mul(x, a)"
    four = {"s": np.array([0, 0]), "e": np.array([1, 4])}
    model = optimize(enter.read(file(tmp_path, cut, mask=buffer, **four)), HTP)
    assert sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None) < 100
    path = file(tmp_path, "a = Mul(big, mask)\n y = Slice(a, s, e)", "float[3000,3000] big", Y, mask=buffer, **four)
    assert "mask: a constant of 34 MiB" in refused(path).message


def test_dropout_and_identity_are_gone(tmp_path: Path) -> None:
    path = file(tmp_path, "a = Identity(x)\n b = Dropout(a)\n c = Relu(b)\n d = Identity(c)\n y = Add(d, d)")
    assert [n.op_type for n in optimize(enter.read(path), HTP).graph] == ["Relu", "Add"]


@pytest.mark.parametrize(("field", "value"), [
    ("raw_data", b""), ("raw_data", b"123"), ("raw_data", bytes(12)), ("data_type", 0), ("data_type", 99),
    ("data_type", TensorProto.STRING), ("dims", [2**40, 2**40]), ("dims", [-4]), ("dims", [])])
def test_a_weight_that_is_not_what_its_shape_says_is_named(tmp_path: Path, field: str, value: object) -> None:
    path = file(tmp_path, "y = Mul(x, k)", k=np.ones(4, np.float32))
    model = onnx.load(path)
    tensor = model.graph.initializer[0]
    if field == "dims":
        del tensor.dims[:]
        tensor.dims.extend(value)  # type: ignore[arg-type]
    else:
        setattr(tensor, field, value)
    path.write_bytes(model.SerializeToString())
    assert str(path) in refused(path).message


@pytest.mark.parametrize("name", [b"kweight", b"the_graph"])
def test_a_name_that_is_no_text_is_refused(tmp_path: Path, name: bytes) -> None:
    path = file(tmp_path, "y = Mul(x, kweight)", kweight=np.ones(4, np.float32))
    model = onnx.load(path)
    model.graph.name = "the_graph"
    raw = model.SerializeToString()
    path.write_bytes(raw.replace(name, b"\xff" + name[1:]))
    refused(path)
