"""Rotary embedding: recognised as one RotaryEmbedding node (ONNX opset 23), lowered where a target wants it so.

The exporter writes x * [c c] + rotate_half(x) * [s s]. As one node other passes can see that it is linear
in x, and TensorRT fuses it; HTP runs only the half-split arithmetic without a float island.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from edgeforge.graph import edit
from edgeforge.graph.edit import Dim


class FuseRope(ir.passes.InPlacePass):
    """Post: no rotate_half pattern is left; cos and sin are read as the half-width rows [1, S, d/2]."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        return edit.rewrite(model, ("Add",), _fuse)


class LowerRope(ir.passes.InPlacePass):
    """RotaryEmbedding -> lo*cos - hi*sin ‖ hi*cos + lo*sin, on half-width rows [1, 1, S, d/2]."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [node for node in model.graph if node.op_type == "RotaryEmbedding"]
        for node in found:
            _lower(model.graph, node)
        if found:
            common.RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, bool(found))


def _fuse(add: ir.Node) -> bool:
    left, right = (edit.producer(v, "Mul") for v in add.inputs)
    if left is None or right is None:
        return False
    for straight, turned in ((left, right), (right, left)):
        for x, cos2 in (straight.inputs, reversed(straight.inputs)):
            for rotated, sin2 in (turned.inputs, reversed(turned.inputs)):
                cos, sin = _half(cos2), _half(sin2)
                if x is not None and cos is not None and sin is not None and _rotates(rotated, x):
                    rows = [_rows(add, cos), _rows(add, sin)]
                    out = add.outputs[0]
                    fused = edit.node_before(add, "RotaryEmbedding", [x, *rows], f"{out.name}/rope",
                                             edit.known_dims(out))
                    edit.take_over(out, fused)
                    return True
    return False


def _half(value: ir.Value | None) -> ir.Value | None:
    """cos when value is [cos cos], seen through views."""
    while (view := edit.producer(value, "Squeeze", "Unsqueeze", "Reshape")) is not None:
        value = view.inputs[0]
    node = edit.producer(value, "Concat")
    if node is None or len(node.inputs) != 2 or node.inputs[0] is not node.inputs[1] or not _on_last(node):
        return None
    half = node.inputs[0]
    return half if half is not None and edit.known_dims(half)[:2] == [1, 1] else None


def _rotates(value: ir.Value | None, x: ir.Value) -> bool:
    """value = [-x_hi x_lo]?"""
    node = edit.producer(value, "Concat")
    if node is None or len(node.inputs) != 2:
        return False
    minus, low = edit.producer(node.inputs[0], "Neg"), edit.producer(node.inputs[1], "Slice")
    high = edit.producer(minus.inputs[0], "Slice") if minus is not None else None
    width = edit.known_dims(x)[-1]
    if high is None or low is None or high.inputs[0] is not x or low.inputs[0] is not x or not isinstance(width, int):
        return False
    last = len(edit.known_dims(x)) - 1
    return (_on_last(node) and edit.slice_bounds(low) == {last: (0, width // 2)}
            and edit.slice_bounds(high) == {last: (width // 2, width)})


def _on_last(concat: ir.Node) -> bool:
    axis = concat.attributes.get("axis")
    return axis is not None and axis.as_int() in (-1, len(edit.known_dims(concat.outputs[0])) - 1)


def _rows(anchor: ir.Node, cos: ir.Value) -> ir.Value:
    """[1, 1, S, d/2] as [1, S, d/2], made once a graph."""
    for use in cos.uses():
        if use.node.op_type == "Squeeze" and edit.ints(use.node.inputs[1]) == [1]:
            return use.node.outputs[0]
    graph = anchor.graph
    if not isinstance(graph, ir.Graph):
        raise ValueError("anchor is not in a graph")
    shape = edit.known_dims(cos)
    first = graph[0]
    return edit.node_before(first, "Squeeze", [cos, edit.int_vector(graph, [1])], f"{cos.name}/rows",
                            [shape[0], *shape[2:]])


def _lower(graph: ir.Graph, node: ir.Node) -> None:
    x, cos3, sin3 = node.inputs[:3]
    if x is None or cos3 is None or sin3 is None:
        raise ValueError(f"{node.name} lacks an input")
    out = node.outputs[0]
    full = edit.known_dims(x)
    width = full[-1]
    if not isinstance(width, int):
        raise ValueError(f"{node.name}: rotary width is not static")
    half: list[Dim] = [*full[:-1], width // 2]

    def make(op: str, inputs: list[ir.Value], tail: str) -> ir.Value:
        return edit.node_before(node, op, inputs, f"{out.name}/{tail}", half)

    cos, sin = _broadcast(node, cos3), _broadcast(node, sin3)
    low, high = edit.nodes_before(node, "Split", [x, edit.int_vector(graph, [width // 2] * 2)],
                                  {f"{out.name}/lo": half, f"{out.name}/hi": half},
                                  [ir.AttrInt64("axis", len(full) - 1)])
    first = make("Sub", [make("Mul", [low, cos], "lo_cos"), make("Mul", [high, sin], "hi_sin")], "first")
    second = make("Add", [make("Mul", [high, cos], "hi_cos"), make("Mul", [low, sin], "lo_sin")], "second")
    joined = edit.node_before(node, "Concat", [first, second], f"{out.name}/joined", full,
                              [ir.AttrInt64("axis", len(full) - 1)])
    edit.take_over(out, joined)
    graph.remove(node, safe=True)


def _broadcast(node: ir.Node, rows: ir.Value) -> ir.Value:
    """The rows back as [1, 1, S, d/2]: the graph input itself."""
    squeeze = edit.producer(rows, "Squeeze")
    if squeeze is None or squeeze.inputs[0] is None:
        raise ValueError(f"{node.name}: its rows are not a view of a graph input")
    return squeeze.inputs[0]
