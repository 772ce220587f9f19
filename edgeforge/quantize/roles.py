"""What each value of a graph is to quantization: a weight, a table, an activation, cache, or plumbing."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from edgeforge.graph.requantize import is_requantize

MOVES = {"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Slice", "Split", "Expand", "Gather", "Concat", "Identity",
         "Flatten", "Tile", "DepthToSpace", "SpaceToDepth", "Pad", "Resize", "MaxPool", "GlobalMaxPool"}
"""ops that carry codes unchanged, or choose among them: inputs and outputs share one grid. HTP pools, pads and
resizes on one grid only; two make it a float island, or (Pad) wrong"""

FIXED = {"Softmax": (0.0, 1.0), "Sigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0)}
"""ranges that follow from the op. HTP's 16-bit Sigmoid and Tanh write their codes on these grids whatever
encoding their output has (tried: a Tanh with an output range of 0.35 is off by a third of all codes)"""

_NUMBERS = {"Resize": (1, 2), "Clip": (1, 2), "Pad": (2,)}
"""inputs that configure an op: the compiler reads them as floats, and they have no grid"""

_FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}


def is_real(value: ir.Value | None) -> bool:
    """Does value hold reals (and so need an encoding)?"""
    return value is not None and value.dtype in _FLOATS and not _is_number(value)


def _is_number(value: ir.Value) -> bool:
    uses = list(value.uses()) if value.is_initializer() else []
    return bool(uses) and all(use.idx in _NUMBERS.get(use.node.op_type, ()) for use in uses)


def moves(node: ir.Node) -> bool:
    """Does node hand its codes on unchanged?"""
    return node.op_type in MOVES and not is_requantize(node)


def weight_axis(value: ir.Value) -> int | None:
    """The output-channel axis when value is a Conv, Gemm or MatMul weight (possibly behind a Transpose)."""
    if not value.is_initializer() or value.shape is None or len(value.shape) < 2:
        return None
    for use in value.uses():
        axis = _axis_at(use.node, use.idx, len(value.shape))
        if axis is not None:
            return axis
        if use.node.op_type == "Transpose" and len(value.shape) == 2:
            for further in use.node.outputs[0].uses():
                turned = _axis_at(further.node, further.idx, 2)
                if turned is not None:
                    return 1 - turned
    return None


def weights(graph: ir.Graph) -> dict[str, ir.Value]:
    """Every weight of a product or convolution, by its name; searches fit most of them, not all."""
    return {name: v for name, v in graph.initializers.items() if is_real(v) and weight_axis(v) is not None}


def _axis_at(node: ir.Node, index: int, rank: int) -> int | None:
    if index != 1:
        return None
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1
    if node.op_type == "MatMul":
        return rank - 1
    if node.op_type == "Gemm":
        turned = node.attributes.get("transB")
        return 0 if turned is not None and turned.as_int() else 1
    return None


BIASED = ("Conv", "ConvTranspose", "Gemm", "LayerNormalization")
"""ops whose third input is added to what the first two make"""


def is_bias(value: ir.Value) -> bool:
    """The third input of such an op: int32 on the grid of its product, not an encoding of its own."""
    return value.is_initializer() and all(u.idx == 2 and u.node.op_type in BIASED for u in value.uses())


def is_gain(value: ir.Value) -> bool:
    """What a LayerNormalization multiplies by: HTP takes it on a symmetric grid only."""
    return value.is_initializer() and all(u.idx == 1 and u.node.op_type == "LayerNormalization" for u in value.uses())


Part = tuple[str, int | str]


def part(node: ir.Node, index: int) -> Part:
    """What a constant is to node at one of its inputs; equal for uses that can share a grid."""
    value = node.inputs[index]
    if index == 2 and node.op_type in BIASED:
        return "bias", str(node.outputs[0].name)
    if index == 1 and node.op_type == "LayerNormalization":
        return "gain", 0
    if index in _NUMBERS.get(node.op_type, ()):
        return "number", 0
    axis = _axis_at(node, index, len(value.shape)) if value is not None and value.shape is not None else None
    return ("weight", axis) if axis is not None else ("value", 0)


def _pointwise(conv: ir.Node) -> bool:
    """A 1x1 convolution of one group, whose weight is a parameter?"""
    weight, group = conv.inputs[1], conv.attributes.get("group")
    return (weight is not None and weight.is_initializer() and weight.shape is not None
            and all(d == 1 for d in list(weight.shape)[2:]) and (group is None or group.as_int() == 1))


def takes_blocks(value: ir.Value) -> bool:
    """Is value read by 1x1 convolutions and MatMuls alone, as their weight? HTP's compiler makes floats of any other
    weight in blocks, a Gemm's too."""
    return all(u.idx == 1 and (u.node.op_type == "MatMul" or (u.node.op_type == "Conv" and _pointwise(u.node)))
               for u in value.uses())


def groups(graph: ir.Graph) -> Iterator[list[ir.Value]]:
    """Sets of values that must share one grid, in graph order: a move's real inputs and outputs together."""
    parent: dict[ir.Value, ir.Value] = {}

    def root(value: ir.Value) -> ir.Value:
        while parent[value] is not value:
            parent[value] = parent[parent[value]]
            value = parent[value]
        return value

    for value in values(graph):
        parent[value] = value
    for node in graph:
        if moves(node):
            tied = [v for v in (*node.inputs, *node.outputs) if v is not None and v in parent]
            for value in tied[1:]:
                parent[root(value)] = root(tied[0])
    found: dict[ir.Value, list[ir.Value]] = {}
    for value in parent:
        found.setdefault(root(value), []).append(value)
    yield from found.values()


def values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Every real value: inputs, used initializers, node outputs."""
    candidates = [*graph.inputs, *(v for v in graph.initializers.values() if v.uses()),
                  *(o for n in graph for o in n.outputs)]
    yield from (v for v in candidates if is_real(v))
