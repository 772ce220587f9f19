"""Ops that move, cut and join: views where elements stay in their order."""

from __future__ import annotations

import onnx_ir as ir

from edgeforge.backends.coreml import laid
from edgeforge.backends.coreml.emit import Lowering, Work, path, static
from edgeforge.backends.coreml.laid import Laid
from edgeforge.backends.coreml.lower.pointwise import common
from edgeforge.backends.coreml.mil import mb
from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit
from edgeforge.graph.views import perm


def _same(node: ir.Node, work: Work) -> Laid:
    return work.read(node)


def _transpose(node: ir.Node, work: Work) -> Laid:
    x, turn = work.read(node), perm(node)
    order = tuple(None if a is None else turn.index(a) for a in x.order)
    return Laid(x.var, order, static(node.outputs[0]))


def _reshape(node: ir.Node, work: Work) -> Laid:
    """A view when only axes of size 1 come and go; else through the natural order."""
    x, shape = work.read(node), static(node.outputs[0])
    before = [a for a, d in enumerate(x.shape) if d != 1]
    after = [a for a, d in enumerate(shape) if d != 1]
    if [x.shape[a] for a in before] == [shape[a] for a in after]:
        return x.viewed(shape, dict(zip(before, after, strict=True)))
    order = laid.natural(len(shape))
    flat = work.arranged(x, laid.natural(x.rank))
    made = mb.reshape(x=flat, shape=[1] * (len(order) - len(shape)) + list(shape), name=work.named(node))
    return Laid(made, order, shape)


def _slice(node: ir.Node, work: Work) -> Laid:
    x, shape, bounds = work.read(node), static(node.outputs[0]), edit.slice_bounds(node)
    if bounds is None:
        raise UnsupportedError(f"{path(node)}: a Slice with steps or computed bounds")
    if shape == x.shape:
        return x
    made = Laid(x.var, x.order, shape)
    begin = [0 if a is None else bounds.get(a, (0, 0))[0] for a in x.order]
    var = mb.slice_by_size(x=x.var, begin=begin, size=made.stored(x.order), name=work.named(node))
    return Laid(var, x.order, shape)


def _split(node: ir.Node, work: Work) -> list[Laid]:
    x, axis = work.read(node), node.attributes.get("axis")
    along = (axis.as_int() if axis is not None else 0) % x.rank
    shapes = [static(v) for v in node.outputs]
    parts = mb.split(x=x.var, split_sizes=[s[along] for s in shapes], axis=x.place(along), name=work.named(node))
    return [Laid(var, x.order, shape) for var, shape in zip(parts, shapes, strict=True)]


def _concat(node: ir.Node, work: Work) -> Laid:
    """In the order of its largest part; what leaves the graph in its own."""
    shape = static(node.outputs[0])
    along = node.attributes["axis"].as_int() % len(shape)
    order = laid.natural(len(shape)) if node.outputs[0].is_graph_output() else common(node, work)
    parts = [work.operand(node, i, len(shape), order) for i in range(len(node.inputs))]
    made = mb.concat(values=parts, axis=order.index(along), name=work.named(node))
    return Laid(made, order, shape)


TABLE: dict[str, Lowering] = {"Identity": _same, "Transpose": _transpose, "Reshape": _reshape, "Squeeze": _reshape,
                              "Unsqueeze": _reshape, "Slice": _slice, "Split": _split, "Concat": _concat}
