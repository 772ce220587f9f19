"""IR -> the ONNX that TensorRT compiles without a detour: opset 24, float16, cache in place, one Attention a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir
from edgeforge_runtime.manifest import new_name, past_layer
from onnx_ir.passes import common

from edgeforge.backends.tensorrt import activations, rows, siblings, weights
from edgeforge.backends.tensorrt.job import Shape
from edgeforge.backends.tensorrt.weights import Packed
from edgeforge.encodings import Table
from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit
from edgeforge.graph.fuse_attention import FuseAttention
from edgeforge.graph.half import ToHalf
from edgeforge.graph.in_place import CacheInPlace

_IR_VERSION = 11
_OPS = {
    "Add", "Attention", "Concat", "DequantizeLinear", "Div", "Gather", "Gelu", "LayerNormalization", "MatMul", "Max",
    "Mul", "Neg", "Pow", "QuantizeLinear", "RMSNormalization", "Relu", "Reshape", "RotaryEmbedding", "Shape",
    "Sigmoid", "Slice", "Softmax", "Split", "Squeeze", "Sub", "Tanh", "TensorScatter", "Transpose", "Unsqueeze"}
"""what decoders leave after optimize. Each is built by TensorRT-RTX 1.7.1 in tests/tensorrt: Neg, Relu and Unsqueeze by
themselves, the others in one family or another"""


@dataclass(frozen=True)
class Emitted:
    """model: for TensorRT. packed: its weights that are codes, by name. read: inputs of products that are codes too."""

    model: ir.Model
    packed: dict[str, Packed]
    read: tuple[str, ...]

    @property
    def weight_bytes(self) -> int:
        """Of all constants."""
        return sum(v.const_value.nbytes for v in self.model.graph.initializers.values() if v.const_value is not None)

    @property
    def attentions(self) -> int:
        return sum(node.op_type == "Attention" for node in self.model.graph)

    def codes(self, dtype: str) -> int:
        """Codes of that numpy type that kernels read."""
        return sum(p.codes.size for p in self.packed.values() if p.codes.dtype.name == dtype)

    def profiles(self, widths: Sequence[int]) -> tuple[dict[str, Shape], ...]:
        """The inputs' shapes for each width."""
        return tuple({str(v.name): tuple(d if isinstance(d, int) else ar for d in edit.known_dims(v))
                      for v in self.model.graph.inputs} for ar in widths)


def emit(model: ir.Model, table: Table, context: int, alone: bool = True) -> Emitted:
    """Rewrites the plain profile's float graph in place.

    Args:
        table: grids of weights; of activations too where products multiply codes by codes. The rest is float16.
        context: slots of the cache.
        alone: may 8-bit weights meet float16 on the GPU (Gpu.int8_alone)?

    Raises:
        UnsupportedError: what TensorRT would refuse to parse, or unpack to float16 first (by module path).
    """
    graph = model.graph
    inputs = [str(v.name) for v in graph.inputs if past_layer(str(v.name))]
    CacheInPlace(context, [(name, new_name(name)) for name in inputs])(model)
    FuseAttention()(model)
    common.IdentityEliminationPass()(model)
    read = activations.write(graph, table)
    packed = siblings.merge(model, weights.pack_all(graph, table, alone))
    rows.double(model, packed)
    weights.write(graph, packed)
    ToHalf()(model)
    common.RemoveUnusedNodesPass()(model)
    _check(graph)
    model.ir_version = _IR_VERSION
    return Emitted(model, packed, tuple(read))


def _check(graph: ir.Graph) -> None:
    for node in graph:
        if node.op_type not in _OPS:
            raise UnsupportedError(f"{node.outputs[0].name}: op {node.op_type} was never built for TensorRT here",
                                   "the model needs another form, or a test of this op")
        shape = edit.dims(node.outputs[0])
        if shape is None:
            raise UnsupportedError(f"{node.outputs[0].name}: the shape of what {node.op_type} makes is not known",
                                   "TensorRT wants every dimension but the token's fixed")
