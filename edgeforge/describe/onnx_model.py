"""An ONNX file without its weights' bytes: interface, operators, parameters, grids, files beside it."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto

from edgeforge.errors import EdgeForgeError

_BITS = {"uint4": 4, "int4": 4, "uint2": 2, "int2": 2, "float4e2m1": 4}
_Q, _DQ = "QuantizeLinear", "DequantizeLinear"


def describe(path: Path) -> dict[str, Any]:
    """See the module. EdgeForgeError: not an ONNX model, or a damaged one."""
    model = _load(path)
    try:
        facts = _facts(path, model)
        json.dumps(facts)  # a name that is not UTF-8 comes as bytes
    except (LookupError, TypeError, ValueError) as error:
        raise EdgeForgeError(f"{path} is damaged: {type(error).__name__} {error}", "copy or export it again") from error
    return facts


def _facts(path: Path, model: ModelProto) -> dict[str, Any]:
    graph = model.graph
    inputs = [v for v in graph.input if v.name not in {t.name for t in graph.initializer}]
    external, missing = _external(path, graph)
    facts: dict[str, Any] = {
        "kind": "ONNX model", "path": str(path), "bytes": path.stat().st_size, "ir_version": model.ir_version,
        "opsets": {o.domain or "ai.onnx": o.version for o in model.opset_import},
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "inputs": [_value(v) for v in inputs], "outputs": [_value(v) for v in graph.output],
        "dynamic_dimensions": sorted({d for v in (*inputs, *graph.output) for d in _value(v)["shape"]
                                      if isinstance(d, str)}),
        "nodes": len(graph.node), "operators": _operators(graph), "parameters": _parameters(graph),
        "quantization": _grids(graph), "external_files": external, "problems": missing,
    }
    if contexts := [n for n in graph.node if n.op_type == "EPContext"]:
        facts["compiled_graphs"] = [{a.name: a.s.decode("utf-8", "replace") for a in n.attribute
                                     if a.name in ("partition_name", "ep_cache_context", "ep_sdk_version", "source")}
                                    for n in contexts]
    return facts


def _load(path: Path) -> ModelProto:
    try:
        model = onnx.load(path, load_external_data=False)
    except OSError:
        raise
    except Exception as error:  # protobuf's own error types differ between its implementations
        raise EdgeForgeError(f"{path} is not a readable ONNX model: {error}", "it is truncated or of another kind"
                             ) from error
    if not model.ir_version or not model.graph.ByteSize():
        raise EdgeForgeError(f"{path} holds no ONNX graph ({path.stat().st_size:,} bytes)", "it is empty or truncated")
    return model


def _value(value: ValueInfoProto) -> dict[str, Any]:
    tensor = value.type.tensor_type
    shape = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim]
    return {"name": value.name, "dtype": _name(tensor.elem_type), "shape": shape}


def _operators(graph: GraphProto) -> dict[str, int]:
    counts = Counter(f"{n.domain}.{n.op_type}" if n.domain else n.op_type for n in graph.node)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _parameters(graph: GraphProto) -> dict[str, Any]:
    by_type: Counter[str] = Counter()
    elements = 0
    for tensor in graph.initializer:
        by_type[_dtype(tensor)] += _bytes(tensor)
        elements += math.prod(tensor.dims)
    return {"tensors": len(graph.initializer), "elements": elements, "bytes": sum(by_type.values()),
            "bytes_by_type": dict(by_type.most_common())}


def _bytes(tensor: TensorProto) -> int:
    name, elements = _dtype(tensor), int(math.prod(tensor.dims))
    if name in _BITS:
        return (elements * _BITS[name] + 7) // 8
    if name in ("string", "undefined"):
        return 0
    return elements * int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _grids(graph: GraphProto) -> dict[str, Any]:
    """How many values are on which grid: activations by QuantizeLinear, weights by DequantizeLinear of a constant."""
    constants = {t.name: t for t in graph.initializer}
    activations: Counter[str] = Counter()
    weights: Counter[str] = Counter()
    for node in graph.node:
        if node.op_type not in (_Q, _DQ):
            continue
        zero = constants.get(node.input[2]) if len(node.input) > 2 else None
        if node.op_type == _Q:
            activations[_dtype(zero) if zero is not None else "uint8"] += 1
        elif (weight := constants.get(node.input[0])) is not None:
            weights[f"{_dtype(weight)} {_reach(node, constants.get(node.input[1]))}"] += 1
    return {"activations": dict(activations.most_common()), "weights": dict(weights.most_common())}


def _reach(node: onnx.NodeProto, scale: TensorProto | None) -> str:
    attributes = {a.name: a.i for a in node.attribute}
    if attributes.get("block_size"):
        return f"per block of {attributes['block_size']}"
    if scale is None:
        return "with a computed scale"
    return "per tensor" if math.prod(scale.dims) == 1 else f"per channel (axis {attributes.get('axis', 1)})"


def _dtype(tensor: TensorProto) -> str:
    return _name(tensor.data_type)


def _name(data_type: int) -> str:
    """onnx's name of a type; a number that it does not know stays a number."""
    known: dict[int, str] = {v: k.lower() for k, v in TensorProto.DataType.items()}
    return known.get(data_type, f"type {data_type}")


def _external(path: Path, graph: GraphProto) -> tuple[list[dict[str, Any]], list[str]]:
    """Files that hold weights, with what the model reads of them; and those that are missing or too short."""
    needed: Counter[str] = Counter()
    for tensor in graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            where = {e.key: e.value for e in tensor.external_data}
            end = int(where.get("offset", 0)) + int(where.get("length", 0) or _bytes(tensor))
            needed[where["location"]] = max(needed[where["location"]], end)
    files, problems = [], []
    for name, size in needed.items():
        beside = path.parent / name
        there = beside.stat().st_size if beside.is_file() else None
        files.append({"file": name, "bytes": there, "read_up_to": size})
        if there is None:
            problems.append(f"{name} is missing: {size:,} bytes of weights are read from it")
        elif there < size:
            problems.append(f"{name} is truncated: {there:,} bytes, weights reach up to {size:,}")
    return files, problems
