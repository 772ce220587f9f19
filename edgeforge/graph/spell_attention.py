"""ONNX's Attention (opset 23), which exporters write for scaled dot products, in the ops that HTP runs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from edgeforge.graph import edit


class SpellAttention(ir.passes.InPlacePass):
    """softmax(scale * Q K' + mask) V, for [batch, heads, tokens, width] and as many key heads as query heads.

    With a cache, a soft cap or causal masking, or with fewer key heads, the node is left as it is.
    """

    def __init__(self, masked: float) -> None:
        super().__init__()
        self._masked = masked

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [n for n in model.graph if n.op_type == "Attention" and _plain(n)]
        for node in found:
            self._spell_out(model.graph, node)
        if found:
            common.RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, bool(found))

    def _spell_out(self, graph: ir.Graph, node: ir.Node) -> None:
        q, k, v = node.inputs[:3]
        if q is None or k is None or v is None:
            raise ValueError(f"{node.name} lacks an input")
        out = node.outputs[0]
        size, keys = edit.known_dims(q), edit.known_dims(k)
        scores = [*size[:3], keys[2]]
        given = node.attributes.get("scale")
        scale = given.as_float() if given is not None else float(size[3]) ** -0.5
        factor = edit.initializer(graph, f"{out.name}/scale", edit.float_scalar(scale))
        scaled = edit.node_before(node, "Mul", [q, factor], f"{out.name}/scaled", size)
        turned = edit.node_before(node, "Transpose", [k], f"{out.name}/keys", [*keys[:2], keys[3], keys[2]],
                                  [ir.AttrInt64s("perm", [0, 1, 3, 2])])
        value = edit.node_before(node, "MatMul", [scaled, turned], f"{out.name}/scores", scores)
        mask = node.inputs[3] if len(node.inputs) > 3 else None
        if mask is not None:
            value = edit.node_before(node, "Add", [value, self._added(graph, node, mask)], f"{out.name}/masked", scores)
        weights = edit.node_before(node, "Softmax", [value], f"{out.name}/weights", scores, [ir.AttrInt64("axis", -1)])
        edit.take_over(out, edit.node_before(node, "MatMul", [weights, v], f"{out.name}/sum", edit.known_dims(out)))

    def _added(self, graph: ir.Graph, node: ir.Node, mask: ir.Value) -> ir.Value:
        """The mask as numbers to add."""
        if mask.dtype != ir.DataType.BOOL:
            return mask
        name = node.outputs[0].name
        numbers = [edit.initializer(graph, f"{name}/{n}", np.array(v, np.float32))
                   for n, v in (("allowed", 0.0), ("forbidden", self._masked))]
        added = edit.node_before(node, "Where", [mask, *numbers], f"{name}/mask", edit.known_dims(mask))
        added.type = ir.TensorType(ir.DataType.FLOAT)
        return added


def _plain(node: ir.Node) -> bool:
    q, k = node.inputs[:2]
    shapes = [edit.dims(v) if v is not None else None for v in (q, k)]
    if any(s is None or len(s) != 4 for s in shapes) or shapes[0] is None or shapes[1] is None:
        return False
    causal, cap = node.attributes.get("is_causal"), node.attributes.get("softcap")
    extra = [v for v in node.inputs[4:] if v is not None] + [v for v in node.outputs[1:] if v.uses()]
    return (shapes[0][1] == shapes[1][1] and not extra and (causal is None or causal.as_int() == 0)
            and (cap is None or cap.as_float() == 0))
