"""Reshape, Squeeze, Unsqueeze, Transpose (and a Slice that takes everything): merged, cancelled, or gone.

A view between two equal shapes disappears, two in a row become one, and a Transpose that moves only
dimensions of size 1 is a Reshape. The value that stays takes the better name of the one that goes.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from edgeforge.graph import edit
from edgeforge.graph.edit import Dim
from edgeforge.graph.requantize import is_requantize

_RESHAPES = ("Reshape", "Squeeze", "Unsqueeze")


class CancelViews(ir.passes.InPlacePass):
    """Runs to a fixed point. Pre: shapes are known. A graph output keeps a node of its own."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        changed = False
        while sum(_visit(model.graph, node) for node in list(model.graph)):
            changed = True
            common.RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, changed)


def _visit(graph: ir.Graph, node: ir.Node) -> bool:
    out = node.outputs[0]
    if not out.uses() and not out.is_graph_output():
        return False
    if node.op_type in _RESHAPES:
        return _reshape(graph, node)
    if node.op_type == "Transpose":
        return _transpose(graph, node)
    if _takes_all(node) or (node.op_type == "Identity" and not is_requantize(node)):
        return _bypass(node, _source(node))
    return False


def _source(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    if value is None:
        raise ValueError(f"{node.name} lacks its input")
    return value


def _takes_all(node: ir.Node) -> bool:
    return (node.op_type == "Slice" and edit.unit_steps(node)
            and edit.known_dims(_source(node)) == edit.known_dims(node.outputs[0]))


def _bypass(node: ir.Node, value: ir.Value) -> bool:
    """Readers of node read value."""
    out = node.outputs[0]
    if out.is_graph_output():
        return False
    edit.replace(out, value)
    _inherit(out, value)
    return True


def _inherit(gone: ir.Value, stays: ir.Value) -> None:
    """stays takes the name of gone when it was only a step on the way to it (x/Transpose -> x)."""
    if (str(stays.name).startswith(f"{gone.name}/") and stays.producer() is not None
            and not stays.is_graph_output() and not gone.is_graph_output()):
        stays.name, gone.name = gone.name, f"{gone.name}/was"


def _reshape(graph: ir.Graph, node: ir.Node) -> bool:
    out, source = node.outputs[0], _source(node)
    origin = source
    while (inner := edit.producer(origin, *_RESHAPES)) is not None:
        origin = _source(inner)
    if edit.dims(origin) == edit.dims(out) and _bypass(node, origin):
        _inherit(source, origin)
        return True
    return origin is not source and _become_reshape(graph, node, origin)


def _become_reshape(graph: ir.Graph, node: ir.Node, origin: ir.Value) -> bool:
    """One Reshape from origin in place of node, when the target can be written as a constant."""
    out = node.outputs[0]
    shape = edit.known_dims(out)
    target = _target(shape)
    if target is None:
        return False
    edit.take_over(out, edit.node_before(node, "Reshape", [origin, edit.int_vector(graph, target)],
                                         f"{out.name}/view", shape))
    return True


def _target(shape: list[Dim]) -> list[int] | None:
    if sum(isinstance(d, str) for d in shape) > 1:
        return None
    return [d if isinstance(d, int) else -1 for d in shape]


def _transpose(graph: ir.Graph, node: ir.Node) -> bool:
    source, order = _source(node), perm(node)
    inner = edit.producer(source, "Transpose")
    if inner is not None:
        order = [perm(inner)[axis] for axis in order]
        source = _source(inner)
        node.replace_input_with(0, source)
        node.attributes["perm"] = ir.AttrInt64s("perm", order)
    if order == list(range(len(order))):
        return _bypass(node, source) or inner is not None
    shape = edit.known_dims(source)
    moved = [axis for axis in order if shape[axis] != 1]
    return (moved == sorted(moved) and _become_reshape(graph, node, source)) or inner is not None


def perm(node: ir.Node) -> list[int]:
    """The permutation of a Transpose, written out."""
    attribute = node.attributes.get("perm")
    if attribute is not None:
        return [int(axis) for axis in attribute.as_ints()]
    return list(reversed(range(len(edit.known_dims(_source(node))))))
