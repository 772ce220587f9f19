"""What may be left after optimize: ops and ranks that some target runs. Everything else is refused by name."""

from __future__ import annotations

import onnx_ir as ir

from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit
from edgeforge.targets import Profile

_OPS = {
    "Gather", "Conv", "MatMul", "Gemm", "Softmax", "RMSNormalization", "LayerNormalization",
    "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Pow", "Sqrt", "Reciprocal", "Exp", "Log", "Min", "Max", "Clip",
    "ReduceMean", "ReduceSum", "ReduceMax", "Sigmoid", "Tanh", "Erf", "Gelu", "Relu", "Elu", "HardSwish", "Swish",
    "Softplus", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Slice", "Split", "Concat", "Expand", "Tile",
    "Identity", "Cast", "QuantizeLinear", "DequantizeLinear", "MaxPool", "AveragePool", "GlobalAveragePool", "Flatten",
    "And", "Or", "Not", "Where", "Equal", "Greater", "Less"}
_MAX_RANK = 5


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
