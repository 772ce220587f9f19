"""IR -> the ONNX that TensorRT compiles without a detour: opset 24, float16, cache in place, one Attention a layer."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
from edgeforge_runtime.manifest import new_name, past_layer
from onnx_ir.passes import common

from edgeforge.backends.tensorrt import activations, siblings, weights
from edgeforge.backends.tensorrt.weights import Packed
from edgeforge.encodings import Table
from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit
from edgeforge.graph.fuse_attention import FuseAttention
from edgeforge.graph.half import ToHalf
from edgeforge.graph.in_place import CacheInPlace

_IR_VERSION = 11
_OPS = {
    "Add", "Attention", "Concat", "DequantizeLinear", "Div", "Gather", "Gelu", "LayerNormalization", "MatMul", "Mul",
    "Neg", "QuantizeLinear", "RMSNormalization", "Relu", "Reshape", "RotaryEmbedding", "Sigmoid", "Slice", "Softmax",
    "Split", "Squeeze", "Sub", "Tanh", "TensorScatter", "Transpose", "Unsqueeze"}
"""what decoders leave after optimize, each built here by TensorRT-RTX 1.7.1"""


@dataclass(frozen=True)
class Emitted:
    """model: for TensorRT. packed: its weights that are codes, by name. int8: inputs of products that are int8 too."""

    model: ir.Model
    packed: dict[str, Packed]
    int8: tuple[str, ...]


def emit(model: ir.Model, table: Table, context: int) -> Emitted:
    """Rewrites the plain profile's float graph in place.

    Args:
        table: grids of weights; of activations too where products multiply int8 by int8. The rest is float16.
        context: slots of the cache.

    Raises:
        UnsupportedError: what TensorRT would refuse to parse, or unpack to float16 first (by module path).
    """
    graph = model.graph
    inputs = [str(v.name) for v in graph.inputs if past_layer(str(v.name))]
    CacheInPlace(context, [(name, new_name(name)) for name in inputs])(model)
    FuseAttention()(model)
    common.IdentityEliminationPass()(model)
    int8 = activations.write(graph, table)
    packed = siblings.merge(model, weights.pack_all(graph, table))
    weights.write(graph, packed)
    ToHalf()(model)
    common.RemoveUnusedNodesPass()(model)
    _check(graph)
    model.ir_version = _IR_VERSION
    return Emitted(model, packed, tuple(int8))


def _check(graph: ir.Graph) -> None:
    for node in graph:
        if node.op_type not in _OPS:
            raise UnsupportedError(f"{node.outputs[0].name}: op {node.op_type} was never built for TensorRT here",
                                   "the model needs another form, or a test of this op")
        shape = edit.dims(node.outputs[0])
        if shape is None:
            raise UnsupportedError(f"{node.outputs[0].name}: the shape of what {node.op_type} makes is not known",
                                   "TensorRT wants every dimension but the token's fixed")
