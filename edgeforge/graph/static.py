"""Shapes that the exporter computes at run time, although it knew them: written as constants.

Pre: shapes from the exporter. Post: no cast that keeps the type, no computed Reshape target of a known shape,
no Slice whose bounds lie outside its dimension.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit


class StaticShapes(ir.passes.InPlacePass):
    """Gives every Reshape a constant target (one -1 for a symbolic dimension) and every Slice bounds inside its
    dimension (the exporter's "to the end" is 2^63-1, which does not fit the 32 bits of some compilers); drops
    no-op casts and the zero bias that the exporter computes for a convolution without one."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        changed = False
        for node in list(model.graph):
            if node.op_type == "Reshape" and edit.constant(node.inputs[1]) is None:
                changed |= _constant_target(model.graph, node)
            elif node.op_type == "Slice":
                changed |= clamp(model.graph, node)
            elif node.op_type in ("Cast", "CastLike") and _keeps_type(node):
                edit.replace(node.outputs[0], _input(node))
                changed = True
            elif node.op_type == "Conv" and len(node.inputs) == 3 and _computed_zero(node.inputs[2]):
                node.resize_inputs(2)
                changed = True
        return ir.passes.PassResult(model, changed)


def _constant_target(graph: ir.Graph, node: ir.Node) -> bool:
    out = node.outputs[0]
    shape = edit.dims(out)
    if shape is None:
        return False  # shape arithmetic itself: dies once nothing reads it
    symbolic = sum(isinstance(d, str) for d in shape)
    if symbolic > 1:
        raise UnsupportedError(f"{out.name}: Reshape to {shape} has more than one open dimension",
                               "only the token dimensions may be symbolic, one at a time")
    target = [d if isinstance(d, int) else -1 for d in shape]
    node.replace_input_with(1, edit.int_vector(graph, target))
    return True


def clamp(graph: ir.Graph, node: ir.Node) -> bool:
    """Writes a Slice's bounds as numbers from 0 to its dimension."""
    bounds = edit.slice_bounds(node)
    if bounds is None:
        return False
    wanted = [list(bounds), [b[0] for b in bounds.values()], [b[1] for b in bounds.values()]]
    axes, starts, stops = wanted
    now = [edit.ints(v) for v in node.inputs[1:4]]
    if now == [starts, stops, axes] and len(node.inputs) == 4:
        return False
    node.resize_inputs(4)
    for index, vector in enumerate((starts, stops, axes), 1):
        node.replace_input_with(index, edit.int_vector(graph, vector))
    return True


def _input(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    if value is None:
        raise ValueError(f"{node.name} lacks its input")
    return value


def _keeps_type(node: ir.Node) -> bool:
    source, out = _input(node), node.outputs[0]
    return (source.dtype is not None and source.dtype == out.dtype and bool(out.uses())
            and not out.is_graph_output())


def _computed_zero(value: ir.Value | None) -> bool:
    """Expand or CastLike of a zero? A bias that is a parameter stays, whatever its values."""
    start = value
    while value is not None and (node := edit.producer(value, "Expand", "CastLike", "Cast")) is not None:
        value = node.inputs[0]
    array = edit.constant(value)
    return value is not start and array is not None and not array.any()
