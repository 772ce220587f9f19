"""Attention that adapt has spelled out, as ONNX's one Attention node (opset 23) with one output.

TensorRT compiles that node to its own attention kernels, and takes it only without cache outputs. Fewer key heads
than query heads are the node's own business: nothing is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes import common

from edgeforge.graph import edit, views
from edgeforge.graph.edit import Dim

_SCALE = 0.25
"""Of the node; the query, whose weights hold the model's own scale, is divided by it first. Powers of two, and so is
the root that the operator applies to query and key each: no number changes. With a scale of 1 TensorRT-RTX 1.7.1 copies
each key cache before it writes into it (seen in its layer dump); with any other it writes in place."""


class FuseAttention(ir.passes.InPlacePass):
    """MatMul, Add of the mask, Softmax, MatMul over folded queries [kv, group, S, d] -> Attention. Pre: shapes known.

    Scores with a soft cap stay spelled out: the ONNX text (opset 23 and 24) caps after the mask, models before it.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [p for node in model.graph if node.op_type == "Softmax" and (p := _match(node)) is not None]
        for pattern in found:
            _fuse(model.graph, pattern)
        if found:
            common.RemoveUnusedNodesPass()(model)
            views.CancelViews()(model)
        return ir.passes.PassResult(model, bool(found))


@dataclass(frozen=True)
class _Pattern:
    """query [kv, group, S, d], key and value [1, kv, T, d], mask [1, 1, S, T], mixed = what attention makes."""

    query: ir.Value
    key: ir.Value
    value: ir.Value
    mask: ir.Value
    mixed: ir.Value


def _match(softmax: ir.Node) -> _Pattern | None:
    add = edit.producer(softmax.inputs[0], "Add")
    out = edit.only_user(softmax.outputs[0])
    scores = edit.producer(add.inputs[0], "MatMul") if add is not None else None
    if add is None or scores is None or out is None or out.op_type != "MatMul":
        return None
    turned, mask, query = edit.producer(scores.inputs[1], "Transpose"), add.inputs[1], scores.inputs[0]
    key = turned.inputs[0] if turned is not None else None
    value = _unfolded(out.inputs[1])
    if turned is None or key is None or value is None or query is None or mask is None or not mask.is_graph_input():
        return None
    if views.perm(turned) != [1, 0, 3, 2] or edit.known_dims(key) != edit.known_dims(value):
        return None
    return _Pattern(query, key, value, mask, out.outputs[0])


def _unfolded(value: ir.Value | None) -> ir.Value | None:
    """[kv, 1, T, d] as it was before: [1, kv, T, d]. One key head looks the same both ways."""
    node = edit.producer(value, "Reshape", "Transpose")
    source = node.inputs[0] if node is not None else None
    if value is None or source is None:
        return value
    kv, _, tokens, depth = edit.known_dims(value)
    return source if edit.dims(source) == [1, kv, tokens, depth] else value if kv == 1 else None


def _fuse(graph: ir.Graph, p: _Pattern) -> None:
    kv, group, tokens, depth = edit.known_dims(p.query)
    if not isinstance(kv, int) or not isinstance(group, int):
        raise ValueError(f"{p.query.name}: the number of heads is open")
    anchor = p.mixed.producer()
    if anchor is None:
        raise ValueError(f"{p.mixed.name} has no producer")
    whole: list[Dim] = [1, kv * group, tokens, depth]
    out: list[Dim] = [*whole[:3], edit.known_dims(p.value)[-1]]
    name = str(p.mixed.name)
    query = edit.node_before(anchor, "Reshape", [p.query, _target(graph, whole)], f"{name}/query", whole)
    factor = edit.initializer(graph, "const.attention.unscale", edit.float_scalar(1 / _SCALE))
    unscaled = edit.node_before(anchor, "Mul", [query, factor], f"{name}/unscaled", whole)
    made = edit.node_before(anchor, "Attention", [unscaled, p.key, p.value, p.mask], f"{name}/attention", out,
                            [ir.AttrFloat32("scale", _SCALE)])
    folded: list[Dim] = [kv, group, *out[2:]]
    edit.take_over(p.mixed, edit.node_before(anchor, "Reshape", [made, _target(graph, folded)], f"{name}/folded",
                                             folded))


def _target(graph: ir.Graph, shape: list[Dim]) -> ir.Value:
    return edit.int_vector(graph, [d if isinstance(d, int) else -1 for d in shape])
