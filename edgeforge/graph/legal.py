"""What may be left after optimize: ops and ranks that some target runs. Everything else is refused by name."""

from __future__ import annotations

import onnx_ir as ir

from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit
from edgeforge.targets import Profile

_OPS = {
    "Gather", "Conv", "ConvTranspose", "MatMul", "Gemm", "Softmax", "LogSoftmax", "RMSNormalization",
    "LayerNormalization", "LpNormalization", "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sign", "Floor", "Pow", "Sqrt",
    "Reciprocal", "Exp", "Sin", "Cos", "Min", "Max", "Clip", "CumSum", "ReduceMean", "ReduceSum", "ReduceMax",
    "ReduceMin", "ArgMax", "Sigmoid", "Tanh", "Gelu", "Relu", "LeakyRelu", "Elu", "HardSwish", "HardSigmoid", "Swish",
    "Softplus", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Resize", "DepthToSpace",
    "SpaceToDepth", "Pad", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split", "Concat",
    "Expand", "Tile", "Identity", "Cast", "And", "Or", "Not", "Where", "Equal", "Greater", "Less",
    "QuantizeLinear", "DequantizeLinear"}
"""what HTP's compiler takes in 16 bits and computes as onnxruntime does (each tried on onnxruntime-qnn 2.7.0). It
rejects Erf, Mish, PRelu and GroupNormalization, makes InstanceNormalization a float island, and Log wrong"""
_TYPES = {ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.BOOL}
_MAX_RANK = 5
_MOST_BYTES = 1 << 24
"""of a constant that is neither weight nor table; a buffer made for the longest sequence has hundreds of MB"""


def check_plain(graph: ir.Graph, profile: Profile) -> None:
    """check, and what must hold for a graph that comes from anywhere: types, known sizes, no forgotten buffers.

    Raises:
        UnsupportedError: the first node or constant that does not fit, by name.
    """
    check(graph, profile)
    for node in graph:
        for value in node.outputs:
            if value.dtype not in _TYPES:
                kind = value.dtype.name if value.dtype is not None else value.type
                raise UnsupportedError(f"{value.name}: {node.op_type} makes {kind}",
                                       "export the model in float32, with 32 or 64 bit integers")
            shape = edit.dims(value)
            if shape is None or not all(isinstance(d, int) and d > 0 for d in shape):
                raise UnsupportedError(f"{value.name}: the size of what {node.op_type} makes is not known: {shape}",
                                       "its size depends on the data, or is zero; NPUs want every size fixed")
        table = node.inputs[0] if node.op_type == "Gather" else None
        if table is not None and table.dtype == ir.DataType.BOOL:
            raise UnsupportedError(f"{node.outputs[0].name}: Gather on bool", "gather numbers, and compare afterwards")
    for value in graph.outputs:
        if value.producer() is None:  # all that led to it was folded
            raise UnsupportedError(f"{value.name}: this output is the same whatever the inputs are",
                                   "leave it out of the outputs when exporting")
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.nbytes > _MOST_BYTES and not any(
                _is_parameter(use.node, use.idx) for use in value.uses()):
            raise UnsupportedError(f"{value.name}: a constant of {tensor.nbytes / 2**20:.0f} MiB ({tensor.dtype.name} "
                                   f"{list(tensor.shape)}) that is no weight", "a mask or position buffer for the "
                                   "longest sequence? Export at the length that you run")


def _is_parameter(node: ir.Node, index: int) -> bool:
    return node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul") or (node.op_type == "Gather" and index == 0)


def check(graph: ir.Graph, profile: Profile) -> None:
    """Raises UnsupportedError for the first node that no target of this profile runs."""
    allowed = _OPS if profile.lower_rope else _OPS | {"RotaryEmbedding"}
    for node in graph:
        if node.domain not in ("", "ai.onnx") or node.op_type not in allowed:
            raise UnsupportedError(f"{node.outputs[0].name}: op {node.op_type} is left in the graph",
                                   f"no {profile.name} target runs it; the model needs another form there")
        for value in node.outputs:
            shape = edit.dims(value)
            if shape is not None and len(shape) > _MAX_RANK:
                raise UnsupportedError(f"{value.name}: {node.op_type} makes {len(shape)} dimensions",
                                       f"{profile.name} targets take at most {_MAX_RANK}")
