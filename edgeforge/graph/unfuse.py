"""A fused projection (Phi-3's qkv_proj, gate_up_proj) becomes one projection for each part that is read.

So every part has a grid of its own, and heads can be split at the projection. The parts' parameters are
rows of the whole: `qkv_proj.weight/rows_0_32`.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from edgeforge.graph import edit
from edgeforge.graph.views import perm


class SplitFused(ir.passes.InPlacePass):
    """Slice(views(Conv(x)), channels) -> views(Conv(x) with those rows). Pre: constants are initializers.

    Only where nothing but such slices reads the projection; it is gone afterwards.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        changed = False
        for conv in [n for n in model.graph if n.op_type == "Conv"]:
            chain = _views(conv)
            if chain[-1].is_graph_output() or not _own(conv):
                continue
            last, channels = (edit.known_dims(v)[a] for v, a in ((chain[-1], -1), (chain[0], 1)))
            cuts = [_rows(use.node, chain[-1]) for use in chain[-1].uses() if last == channels]
            if not cuts or None in cuts:
                continue
            for use, rows in zip(list(chain[-1].uses()), cuts, strict=True):
                if rows is not None:
                    _project(model.graph, conv, chain, use.node, *rows)
            changed = True
        if changed:
            common.RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, changed)


def _views(conv: ir.Node) -> list[ir.Value]:
    """The conv's output and what follows of: a Transpose that brings the channels to the end, Squeeze, Unsqueeze.

    Not Reshape: behind one, the last dimension may be a head's.
    """
    chain = [conv.outputs[0]]
    while (user := edit.only_user(chain[-1])) is not None:
        turn = user.op_type == "Transpose" and len(chain) == 1 and perm(user)[-1] == 1
        if not turn and (user.op_type not in ("Squeeze", "Unsqueeze") or len(chain) == 1):
            break
        chain.append(user.outputs[0])
    return chain


def _rows(node: ir.Node, source: ir.Value) -> tuple[int, int] | None:
    """The channels that node takes, when it is a plain slice of source's last dimension."""
    bounds = edit.slice_bounds(node) if node.op_type == "Slice" and node.inputs[0] is source else None
    if bounds is None or set(bounds) != {len(edit.known_dims(source)) - 1}:
        return None
    return next(iter(bounds.values()))


def _own(conv: ir.Node) -> bool:
    group = conv.attributes.get("group")
    return (group is None or group.as_int() == 1) and all(
        v is not None and v.is_initializer() and len(list(v.uses())) == 1 for v in conv.inputs[1:])


def _project(graph: ir.Graph, conv: ir.Node, chain: list[ir.Value], cut: ir.Node, start: int, stop: int) -> None:
    channels = edit.known_dims(conv.outputs[0])[1]
    parameters = []
    for whole in conv.inputs[1:]:
        array = edit.constant(whole)
        if whole is None or array is None:
            raise ValueError(f"{conv.name}: a parameter is not constant")
        parameters.append(edit.initializer(graph, f"{whole.name}/rows_{start}_{stop}", array[start:stop]))
    out = cut.outputs[0]
    value: ir.Value | None = None
    for whole in chain:
        node = whole.producer()
        if node is None:
            raise ValueError(f"{whole.name} has no producer")
        inputs = [conv.inputs[0], *parameters] if value is None else [value, *node.inputs[1:]]
        shape = [stop - start if d == channels else d for d in edit.known_dims(whole)]
        value = edit.node_before(cut, node.op_type, inputs, edit.fresh(graph, f"{out.name}/{node.op_type}"), shape,
                                 list(node.attributes.values()))
    if value is not None:
        edit.take_over(out, value)
