"""Reshape, Squeeze, Unsqueeze, Transpose (and a Slice that takes everything): merged, cancelled, or gone.

A view between two equal shapes disappears, two in a row become one, and a Transpose that moves only
dimensions of size 1 is a Reshape. The value that stays takes the better name of the one that goes.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from edgeforge.graph import edit
from edgeforge.graph.edit import Dim

_RESHAPES = ("Reshape", "Squeeze", "Unsqueeze")


class CancelViews(ir.passes.InPlacePass):
    """Runs to a fixed point. Pre: shapes are known."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        changed = again = True
        changed = False
        while again:
            again = False
            for node in list(model.graph):
                if node.op_type in _RESHAPES:
                    again |= _reshape(model.graph, node)
                elif node.op_type == "Transpose":
                    again |= _transpose(model.graph, node)
                elif (node.op_type == "Slice" and _takes_all(node)) or (node.op_type == "Identity" and not node.metadata_props and not node.outputs[0].is_graph_output()):
                    _bypass(node, _source(node))
                    again = True
            if again:
                changed = True
                common.RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, changed)


def _source(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    if value is None:
        raise ValueError(f"{node.name} lacks its input")
    return value


def _takes_all(node: ir.Node) -> bool:
    out = node.outputs[0]
    return edit.dims(out) is not None and edit.dims(out) == edit.dims(_source(node)) and bool(out.uses())


def _bypass(node: ir.Node, value: ir.Value) -> None:
    """Readers of node read value."""
    out = node.outputs[0]
    edit.replace(out, value)
    _inherit(out, value)


def _inherit(gone: ir.Value, stays: ir.Value) -> None:
    """stays takes the name of gone when it was only a step on the way to it (x/Transpose -> x)."""
    if (str(stays.name).startswith(f"{gone.name}/") and stays.producer() is not None
            and not stays.is_graph_output() and not gone.is_graph_output()):
        stays.name, gone.name = gone.name, f"{gone.name}/was"


def _reshape(graph: ir.Graph, node: ir.Node) -> bool:
    out, source = node.outputs[0], _source(node)
    if out.is_graph_output():
        inner = edit.producer(source, *_RESHAPES)
        return inner is not None and _retarget(graph, node, _source(inner))
    origin = source
    while (inner := edit.producer(origin, *_RESHAPES)) is not None:
        origin = _source(inner)
    if edit.dims(origin) == edit.dims(out):
        if not out.uses():
            return False
        between = source
        _bypass(node, origin)
        _inherit(between, origin)
        return True
    return origin is not source and _retarget(graph, node, origin)


def _retarget(graph: ir.Graph, node: ir.Node, origin: ir.Value) -> bool:
    """Makes node one Reshape from origin, when its target can be written as a constant."""
    target = _target(edit.known_dims(node.outputs[0]))
    if target is None:
        return False
    _become_reshape(graph, node, origin, target)
    return True


def _target(shape: list[Dim]) -> list[int] | None:
    if sum(isinstance(d, str) for d in shape) > 1:
        return None
    return [d if isinstance(d, int) else -1 for d in shape]


def _become_reshape(graph: ir.Graph, node: ir.Node, origin: ir.Value, target: list[int]) -> None:
    out = node.outputs[0]
    new = edit.node_before(node, "Reshape", [origin, edit.int_vector(graph, target)], f"{out.name}/view",
                           edit.known_dims(out))
    leaves = out.is_graph_output()
    edit.take_over(out, new)
    if leaves:
        return
    if node.outputs[0].uses():
        raise ValueError(f"{node.name} is still read")


def _transpose(graph: ir.Graph, node: ir.Node) -> bool:
    out, source = node.outputs[0], _source(node)
    if not out.uses() and not out.is_graph_output():
        return False
    order = perm(node)
    inner = edit.producer(source, "Transpose")
    if inner is not None:
        order = [perm(inner)[axis] for axis in order]
        source = _source(inner)
        node.replace_input_with(0, source)
        node.attributes["perm"] = ir.AttrInt64s("perm", order)
        if order != list(range(len(order))):
            return True
    if order == list(range(len(order))) and not out.is_graph_output():
        _bypass(node, source)
        return True
    shape = edit.known_dims(source)
    moved = [axis for axis in order if shape[axis] != 1]
    target = _target(edit.known_dims(out))
    if moved == sorted(moved) and target is not None:
        _become_reshape(graph, node, source, target)
        return True
    return False


def perm(node: ir.Node) -> list[int]:
    """The permutation of a Transpose, written out."""
    attribute = node.attributes.get("perm")
    if attribute is not None:
        return [int(axis) for axis in attribute.as_ints()]
    return list(reversed(range(len(edit.known_dims(_source(node))))))
