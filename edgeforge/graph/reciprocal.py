"""1 / x as a Div: HTP's Reciprocal holds its constant 1 on the grid of x, where it may not fit."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from edgeforge.graph import edit


class DivideOne(ir.passes.InPlacePass):
    """Reciprocal(x) -> Div(1, x)."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [n for n in model.graph if n.op_type == "Reciprocal"]
        for node in found:
            out = node.outputs[0]
            one = edit.initializer(model.graph, f"{out.name}/one", edit.float_scalar(1.0))
            quotient = edit.node_before(node, "Div", [one, node.inputs[0]], f"{out.name}/quotient",
                                        edit.known_dims(out))
            edit.take_over(out, quotient)
        if found:
            common.RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, bool(found))
