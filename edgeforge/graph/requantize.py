"""Where a value changes its integer grid, a node says so.

HTP silently turns an op whose operands live on different grids into a float island; so the step from the
activations' 16 bits to the cache's 8 is a node of its own from calibration on: an Identity in the float
graph, a Quantize/Dequantize pair in the QDQ print, a Convert on HTP.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeforge.graph import edit

ROLE, REQUANTIZE, OPERAND = "edgeforge.role", "requantize", "operand"
"""OPERAND: a Requantize whose output is the second operand of a product (operand.py)"""


def is_requantize(node: ir.Node) -> bool:
    return node.op_type == "Identity" and node.metadata_props.get(ROLE) in (REQUANTIZE, OPERAND)


def is_operand(value: ir.Value) -> bool:
    """Does a Requantize make value for a product's second operand?"""
    node = value.producer()
    return node is not None and node.op_type == "Identity" and node.metadata_props.get(ROLE) == OPERAND


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


class JoinCaches(ir.passes.InPlacePass):
    """Takes away what InsertRequantize put there, for caches with as many bits as activations: one grid for both.

    onnxruntime makes one of two 16-bit grids in a row (DoubleQDQPairsRemover), and leaves the Transpose before them
    between two grids: a float island.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        graph = model.graph
        found = [(i, v) for i, v in enumerate(graph.outputs) if str(v.name).startswith("past_")]
        changed = False
        for index, value in found:
            node = value.producer()
            wide = node.inputs[0] if node is not None and is_requantize(node) else None
            if node is None or wide is None:
                continue
            for use in list(value.uses()):
                use.node.replace_input_with(use.idx, wide)
            graph.outputs[index] = wide
            name = value.name
            graph.remove(node, safe=True)
            wide.name = name
            changed = True
        return ir.passes.PassResult(model, changed)


class RequantizeEmbedding(ir.passes.InPlacePass):
    """Puts one Requantize behind every table look-up, so that the table may have fewer bits than activations.

    A Gather hands codes on: without this node its output would carry the table's grid into 16-bit arithmetic.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [n for n in model.graph if n.op_type == "Gather" and n.inputs[0] is not None
                 and n.inputs[0].is_initializer()]
        for node in found:
            value = node.outputs[0]
            out = edit.node_after(node, "Identity", [value], f"{value.name}/requantized", edit.known_dims(value))
            requantize = mark(out)
            for use in list(value.uses()):
                if use.node is not requantize:
                    use.node.replace_input_with(use.idx, out)
        return ir.passes.PassResult(model, bool(found))


def mark(value: ir.Value, role: str = REQUANTIZE) -> ir.Node:
    """The node that makes value, declared a Requantize."""
    node = value.producer()
    if node is None:
        raise ValueError(f"{value.name} has no producer")
    node.metadata_props[ROLE] = role
    return node


def _narrow(graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    """value = op(...)  ->  value/wide = op(...); value = Identity(value/wide)."""
    name = str(value.name)
    out = edit.node_after(node, "Identity", [value], f"{name}/narrow", edit.known_dims(value))
    requantize = mark(out)
    for use in list(value.uses()):
        if use.node is not requantize:
            use.node.replace_input_with(use.idx, out)
    at = next(i for i, o in enumerate(graph.outputs) if o is value)
    graph.outputs[at] = out
    value.name, out.name = f"{name}/wide", name
    requantize.name = f"{name}:Requantize"
