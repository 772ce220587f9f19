"""Where a value changes its integer grid, a node says so.

HTP silently turns an op whose operands live on different grids into a float island; so the step from the
activations' 16 bits to the cache's 8 is a node of its own from calibration on: an Identity in the float
graph, a Quantize/Dequantize pair in the QDQ print, a Convert on HTP.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeforge.graph import edit

ROLE, REQUANTIZE = "edgeforge.role", "requantize"


def is_requantize(node: ir.Node) -> bool:
    return node.op_type == "Identity" and node.metadata_props.get(ROLE) == REQUANTIZE


class InsertRequantize(ir.passes.InPlacePass):
    """Puts one Requantize in front of every past_*_out, so that cache and activations may differ in grid."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        changed = False
        for value in [v for v in model.graph.outputs if str(v.name).startswith("past_")]:
            node = value.producer()
            if node is not None and not is_requantize(node):
                _narrow(model.graph, node, value)
                changed = True
        return ir.passes.PassResult(model, changed)


def _narrow(graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    """value = op(...)  ->  value/wide = op(...); value = Identity(value/wide)."""
    name = str(value.name)
    out = edit.node_after(node, "Identity", [value], f"{name}/narrow", edit.known_dims(value))
    requantize = out.producer()
    if requantize is None:
        raise ValueError("node_after made no node")
    requantize.metadata_props[ROLE] = REQUANTIZE
    for use in list(value.uses()):
        if use.node is not requantize:
            use.node.replace_input_with(use.idx, out)
    at = next(i for i, o in enumerate(graph.outputs) if o is value)
    graph.outputs[at] = out
    value.name, out.name = f"{name}/wide", name
    requantize.name = f"{name}:Requantize"
