"""Any ONNX file -> an onnx_ir graph that the passes can work on, or an error that names what is wrong with it.

What comes out has no functions and no Constant nodes, opset 23 or 24, static inputs, and weights that stay
where they are (memory-mapped) until somebody reads them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx_ir.passes import common

from edgeforge.errors import CheckpointError, UnsupportedError
from edgeforge.graph import edit, external, finite, fold, opset

_LIMIT = (1 << 31) - 1
"""bytes; protobuf's own limit for one message"""
_PLUMBING = 64
"""numbers in a constant that a shape may hang on"""
_OWN = ("", "ai.onnx")
_TYPES = {ir.DataType.FLOAT: "float32", ir.DataType.INT32: "int32", ir.DataType.INT64: "int64",
          ir.DataType.BOOL: "bool"}
"""what a graph's inputs may be, in numpy's spelling"""


def read(path: Path, bound: Mapping[str, tuple[int, ...]] | None = None) -> ir.Model:
    """Reads, checks and normalises an ONNX file.

    Args:
        bound: the shapes that the caller has data for, by input; only for the hint about an open dimension.

    Raises:
        CheckpointError: missing, truncated, not ONNX, not a valid graph, or its external data is not in place.
        UnsupportedError: a valid graph that cannot be built (control flow, open dimensions, types, opset).
    """
    proto = _load(path)
    external.pieces(proto, path)
    for value in proto.graph.input:
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape"):
            raise UnsupportedError(f"{path} input {value.name!r} has no shape", "export it with fixed input shapes")
    try:
        _check(proto, path)
        model = ir.from_proto(proto)
    except CheckpointError:
        raise
    except (ir.serde.SerdeError, ValueError, TypeError, KeyError) as error:
        why = error.__cause__ or error
        raise CheckpointError(f"{path} is not a valid ONNX graph: {type(why).__name__} {why}",
                              "export the model again") from error
    _readable(model.graph, path)
    common.InlinePass()(model)
    common.RemoveInitializersFromInputsPass()(model)
    _plain_nodes(model.graph, path)
    _inputs(model.graph, path, bound or {})
    fold.lift_constants(model)
    opset.upgrade(model, path)
    _outputs(model.graph, path)
    finite.check(model.graph, path)
    return model


def _readable(graph: ir.Graph, path: Path) -> None:
    """A tensor's bytes have to make its shape; onnx's checker does not count those that lie in the file itself."""
    for name, value in graph.initializers.items():
        if value.const_value is not None and not isinstance(value.const_value, ir.ExternalTensor):
            try:
                if any(isinstance(d, int) and d < 0 for d in value.const_value.shape):  # numpy: "whatever fits"
                    raise ValueError("a negative dimension")
                value.const_value.numpy()
            except (ValueError, TypeError, AssertionError) as error:
                raise CheckpointError(f"{path}: tensor {name!r} is damaged: {error}",
                                      "copy or export the model again") from error


def signature(graph: ir.Graph) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Inputs that the caller feeds: numpy dtype and static shape by name."""
    return {str(v.name): (numpy_type(v), tuple(d for d in edit.known_dims(v) if isinstance(d, int)))
            for v in graph.inputs}


def numpy_type(value: ir.Value) -> str:
    """numpy's name for a value's dtype."""
    if value.dtype is None:
        raise ValueError(f"{value.name} has no type")
    return str(value.dtype.numpy())


def _load(path: Path) -> onnx.ModelProto:
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise CheckpointError(f"{path} is not a file", "give the path of the .onnx file")
        if not size:
            raise CheckpointError(f"{path} is empty", "copy or export the model again")
        if size > _LIMIT:
            raise CheckpointError(f"{path} has {size} bytes, and an ONNX file ends at {_LIMIT}",
                                  "save it with external data: onnx.save(model, path, save_as_external_data=True)")
        proto: onnx.ModelProto = onnx.load_model_from_string(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}", "give the path of the .onnx file") from error
    except DecodeError as error:
        raise CheckpointError(f"{path} is not an ONNX file, or is truncated: {error}",
                              "copy or export the model again") from error
    lacks = "graph" if not proto.HasField("graph") else "opset" if not proto.opset_import else ""
    if lacks:
        raise CheckpointError(f"{path} is not an ONNX model: it has no {lacks}", "copy or export the model again")
    return proto


def _check(proto: onnx.ModelProto, path: Path) -> None:
    """onnx's own checker, on the graph without its weights: shapes too, as far as they don't hang on the weights."""
    skeleton = onnx.ModelProto(ir_version=proto.ir_version)
    skeleton.opset_import.extend(proto.opset_import)
    skeleton.functions.extend(proto.functions)
    graph = skeleton.graph
    graph.name = proto.graph.name or "graph"
    graph.input.extend(proto.graph.input)
    graph.output.extend(proto.graph.output)
    for node in proto.graph.node:
        if tensor := _elsewhere(node):
            graph.input.append(onnx.helper.make_tensor_value_info(node.output[0], tensor.data_type, tensor.dims))
        else:
            graph.node.append(node)
    open_outputs = [o for o in graph.output if not o.type.tensor_type.HasField("shape")]
    for output in open_outputs:
        output.type.tensor_type.shape.SetInParent()  # the checker wants one
    for tensor in (a.t for n in graph.node for a in n.attribute if a.t.data_location == onnx.TensorProto.EXTERNAL):
        tensor.CopyFrom(onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0]))
    known = {v.name for v in graph.input}
    seen: set[str] = set()
    for tensor in proto.graph.initializer:
        if not tensor.name or tensor.name in seen:
            raise CheckpointError(f"{path}: initializer {tensor.name!r} is there twice, or has no name",
                                  "export the model again")
        seen.add(tensor.name)
        if math.prod(tensor.dims) <= _PLUMBING and tensor.data_location != onnx.TensorProto.EXTERNAL:
            graph.initializer.append(tensor)  # a Reshape's target is part of what the shapes hang on
        elif tensor.name not in known:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    try:
        onnx.checker.check_model(skeleton)
        for output in open_outputs:
            output.type.tensor_type.ClearField("shape")
        onnx.shape_inference.infer_shapes(skeleton, check_type=True, strict_mode=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError, TypeError) as error:
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        raise CheckpointError(f"{path} is not a valid ONNX graph: {' '.join(lines[:3])}",
                              "onnx.checker.check_model says the same; export the model again") from error


def _elsewhere(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """The tensor of a Constant node that lies in another file."""
    tensors = (a.t for a in node.attribute if a.t.data_location == onnx.TensorProto.EXTERNAL)
    return next(tensors, None) if node.op_type == "Constant" else None


def _plain_nodes(graph: ir.Graph, path: Path) -> None:
    for node in graph:
        name = f"{path}: node {node.name or node.outputs[0].name!r} ({node.op_type})"
        if node.domain not in _OWN:
            raise UnsupportedError(f"{name}: its domain {node.domain} is not ONNX's own",
                                   "export without vendor or contrib operators")
        if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
            raise UnsupportedError(f"{name}: control flow does not compile for an NPU",
                                   "export a model without branches and loops that depend on data")
        if node.op_type in ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"):
            raise UnsupportedError(f"{name}: the graph is already quantized",
                                   "start from the float model: quantizing twice only adds error")
        for value in (*node.inputs, *node.outputs):
            if value is not None and isinstance(value.type, ir.SequenceType | ir.OptionalType):
                raise UnsupportedError(f"{name}: {value.name} is a {type(value.type).__name__}, not a tensor")


def _inputs(graph: ir.Graph, path: Path, bound: Mapping[str, tuple[int, ...]]) -> None:
    if not graph.inputs or not graph.outputs:
        raise UnsupportedError(f"{path}: the graph has no {'outputs' if graph.inputs else 'inputs'}")
    for value in graph.inputs:
        name = f"{path} input {value.name!r}"
        if value.dtype not in _TYPES or not isinstance(value.type, ir.TensorType):
            kind = value.dtype.name if value.dtype is not None else value.type
            raise UnsupportedError(f"{name} is {kind}", f"inputs may be {', '.join(_TYPES.values())}; "
                                   "export the model in float32")
        shape = value.shape or ir.Shape(())
        for axis, dim in enumerate(shape):
            if not isinstance(dim, int):
                raise UnsupportedError(f"{name} dim {axis} {dim.value or '?'!r} is open: NPUs want every size fixed",
                                       _binding(str(value.name), axis, len(shape), bound))
            if dim < 1:
                raise UnsupportedError(f"{name} dim {axis} is {dim}")


def _outputs(graph: ir.Graph, path: Path) -> None:
    """Each is made by a node: nothing else is computed, measured or compiled."""
    names = [str(v.name) for v in graph.outputs]
    for value in graph.outputs:
        if names.count(str(value.name)) > 1:
            raise UnsupportedError(f"{path} output {value.name!r} is declared twice", "export it once")
        maker = value.producer()
        if maker is None or maker.op_type == "Constant":
            kind = "an input too" if value in graph.inputs else "a constant"
            raise UnsupportedError(f"{path} output {value.name!r} is {kind}: nothing computes it",
                                   "leave it out of the outputs when exporting")


def _binding(name: str, axis: int, rank: int, bound: Mapping[str, tuple[int, ...]]) -> str:
    hint = "bind it when exporting (no dynamic_axes or dynamic_shapes)"
    sample = bound.get(name, ())
    # A sample may be without the leading 1 of the input.
    known = {len(sample): axis, len(sample) + 1: axis - 1}.get(rank, -1)
    return hint + (f"; the calibration data has {sample[known]} there" if known >= 0 else "; 1 is usual for a batch"
                   if axis == 0 else "")
