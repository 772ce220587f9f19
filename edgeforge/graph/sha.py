"""MHA -> SHA: one small attention a head, as HTP's kernels and its 8 MB of VTCM like it.

The pass follows the head axis through the graph: it is born where a projection's output is reshaped to
[.., heads, d], lives through transposes, RoPE, cache and softmax, and ends where heads merge again (or
leave as cache). Inside, every value is replaced by one value a head, named `<value>/h<k>`; a projection's
weight is sliced by output channel, so its codes stay what they were. Encodings follow by the same slice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from edgeforge.encodings import Table
from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit
from edgeforge.graph.edit import Dim
from edgeforge.graph.views import CancelViews, perm

_POINTWISE = {"Add", "Sub", "Mul", "Div", "Neg", "Sigmoid", "Tanh", "Softmax", "RMSNormalization", "MatMul",
              "Slice", "Identity", "Concat"}
_AXIS_OPS = {"Softmax", "RMSNormalization", "Concat", "Split"}


@dataclass(frozen=True)
class _Headed:
    """One value as its heads: axes and sizes of the head axes in the whole value, heads in row-major order."""

    axes: tuple[int, ...]
    sizes: tuple[int, ...]
    heads: tuple[ir.Value, ...]


def split_heads(model: ir.Model, table: Table) -> Table:
    """Rewrites model in place; returns the table with the heads' encodings in place of the wholes'.

    Raises:
        UnsupportedError: an op inside an attention mixes heads in a way this pass does not know, or the heads
            of an attention were not found.
    """
    work = _Splitter(model.graph, table)
    for node in list(model.graph):
        work.visit(node)
    ir.passes.Sequential(common.RemoveUnusedNodesPass(), CancelViews())(model)
    for node in model.graph:
        if _is_attention(node) and any(d != 1 for d in edit.known_dims(node.outputs[0])[:-2]):
            raise UnsupportedError(f"{node.outputs[0].name}: attention over several heads is left",
                                   "MHA -> SHA follows heads from Reshape [.., n*d] -> [.., n, d]")
    return work.finish()


class _Splitter:
    def __init__(self, graph: ir.Graph, table: Table) -> None:
        self._graph = graph
        self._headed: dict[ir.Value, _Headed] = {}
        self._table = Table(table)

    def visit(self, node: ir.Node) -> None:
        if not any(v in self._headed for v in node.inputs if v is not None):
            if node.op_type == "Reshape" and _births(node):
                self._birth(node)
            return
        if node.op_type == "Reshape":
            self._reshape(node)
        elif node.op_type == "Transpose":
            self._transpose(node)
        elif node.op_type == "Split":
            self._split(node)
        elif node.op_type in _POINTWISE:
            self._replicate(node)
        else:
            raise UnsupportedError(f"{node.outputs[0].name}: {node.op_type} inside attention heads",
                                   "MHA -> SHA does not know it")
        if node.outputs[0].is_graph_output():
            self._merge_output(node)

    def finish(self) -> Table:
        names = edit.names(self._graph)
        return Table({name: e for name, e in self._table.items() if name in names})

    # -- rules ------------------------------------------------------------------------------------------

    def _birth(self, node: ir.Node) -> None:
        """[.., n*d] -> [.., n, d]: a projection a head."""
        source, out = _source(node), node.outputs[0]
        shape = edit.known_dims(out)
        count, axis = _size(shape[-2]), len(shape) - 2
        depth = _size(shape[-1])
        parts = self._project(node, source, count, depth)
        target = [*shape[:-2], 1, depth]
        heads = [self._view(node, part, target, f"{out.name}/h{h}") for h, part in enumerate(parts)]
        self._keep(out, (axis,), (count,), heads)

    def _project(self, anchor: ir.Node, source: ir.Value, count: int, depth: int) -> list[ir.Value]:
        """source's last axis in count slices: by slicing the projection that makes it, if one does."""
        turn = edit.producer(source, "Transpose")
        conv = edit.producer(turn.inputs[0], "Conv") if turn is not None else None
        if turn is None or conv is None or perm(turn)[-1] != 1 or edit.only_user(source) is None:
            axis = len(edit.known_dims(source)) - 1
            return [self._cut(anchor, source, (axis,), ((h * depth, (h + 1) * depth),), h) for h in range(count)]
        return [self._project_one(anchor, turn, conv, h, depth) for h in range(count)]

    def _project_one(self, anchor: ir.Node, turn: ir.Node, conv: ir.Node, head: int, depth: int) -> ir.Value:
        start, stop = head * depth, (head + 1) * depth
        x, *parameters = conv.inputs
        sliced = [self._slice_constant(p, 0, start, stop, head) for p in parameters if p is not None]
        small = self._copy(anchor, conv, [x, *sliced], _with(edit.known_dims(conv.outputs[0]), {1: depth}), head)
        last = len(edit.known_dims(turn.outputs[0])) - 1
        return self._copy(anchor, turn, [small], _with(edit.known_dims(turn.outputs[0]), {last: depth}), head)

    def _reshape(self, node: ir.Node) -> None:
        whole, out = self._headed[_source(node)], node.outputs[0]
        before, after = edit.known_dims(_source(node)), edit.known_dims(out)
        found = _follow(before, whole, after)
        if found is not None:
            axes, sizes = found
            target = _with(after, dict.fromkeys(axes, 1))
            heads = [self._view(node, v, target, f"{out.name}/h{h}") for h, v in enumerate(whole.heads)]
            self._keep(out, axes, sizes, heads)
        elif _merges(before, whole, after):
            depth = _size(after[-1]) // len(whole.heads)
            target = [*after[:-1], depth]
            flat = [self._view(node, v, target, f"{out.name}/h{h}") for h, v in enumerate(whole.heads)]
            for value in flat:
                self._encode(value, out)
            self._join(node, out, flat, len(after) - 1)
        else:
            raise UnsupportedError(f"{out.name}: Reshape {before} -> {after} mixes heads with other dimensions")

    def _transpose(self, node: ir.Node) -> None:
        whole, out = self._headed[_source(node)], node.outputs[0]
        order = perm(node)
        axes = tuple(order.index(a) for a in whole.axes)
        if axes != tuple(sorted(axes)):
            raise UnsupportedError(f"{out.name}: Transpose reorders head axes")
        target = _with(edit.known_dims(out), dict.fromkeys(axes, 1))
        heads = [self._copy(node, node, [v], target, h) for h, v in enumerate(whole.heads)]
        self._keep(out, axes, whole.sizes, heads)

    def _split(self, node: ir.Node) -> None:
        whole = self._headed[_source(node)]
        self._check_axes(node, whole.axes, len(edit.known_dims(node.outputs[0])))
        ones = dict.fromkeys(whole.axes, 1)
        made = [edit.nodes_before(node, "Split", [v, *node.inputs[1:]],
                                  {f"{o.name}/h{h}": _with(edit.known_dims(o), ones) for o in node.outputs},
                                  list(node.attributes.values())) for h, v in enumerate(whole.heads)]
        for out, heads in zip(node.outputs, zip(*made, strict=True), strict=True):
            self._keep(out, whole.axes, whole.sizes, heads)

    def _replicate(self, node: ir.Node) -> None:
        """Pointwise ops, softmax and matrix products: head by head, grouped keys read by several queries."""
        out = node.outputs[0]
        shape = edit.known_dims(out)
        whole = [self._headed[v] for v in node.inputs if v is not None and v in self._headed]
        axes = tuple(sorted({a for w in whole for a in w.axes}))
        self._check_axes(node, axes, len(shape))
        sizes = tuple(_size(shape[a]) for a in axes)
        heads = []
        for h, index in enumerate(np.ndindex(*sizes)):
            place = dict(zip(axes, index, strict=True))
            inputs = [self._operand(node, v, i, place) for i, v in enumerate(node.inputs)]
            heads.append(self._copy(node, node, inputs, _with(shape, dict.fromkeys(axes, 1)), h))
        self._keep(out, axes, sizes, heads)

    def _check_axes(self, node: ir.Node, axes: Sequence[int], rank: int) -> None:
        touched: set[int] = set()
        if node.op_type in _AXIS_OPS:
            attribute = node.attributes.get("axis")
            default = 0 if node.op_type == "Split" else -1
            touched = {(attribute.as_int() if attribute is not None else default) % rank}
        elif node.op_type == "Slice":
            touched = {a % rank for a in edit.ints(node.inputs[3]) or range(rank)}
        elif node.op_type == "MatMul":
            touched = {rank - 1, rank - 2}
        if touched & set(axes):
            raise UnsupportedError(f"{node.outputs[0].name}: {node.op_type} works across heads")

    def _operand(self, node: ir.Node, value: ir.Value | None, position: int, place: dict[int, int]) -> ir.Value | None:
        if value is None or (node.op_type == "Slice" and position > 0):
            return value
        whole = self._headed.get(value)
        if whole is not None:
            index = [place[a] for a in whole.axes]
            return whole.heads[int(np.ravel_multi_index(index, whole.sizes)) if index else 0]
        shape = edit.known_dims(value)
        offset = len(edit.known_dims(node.outputs[0])) - len(shape)
        wide = [a for a in place if a >= offset and shape[a - offset] != 1]
        if not wide or (node.op_type == "RMSNormalization" and position == 1):
            return value
        head = int(np.ravel_multi_index([place[a] for a in wide], [_size(shape[a - offset]) for a in wide]))
        bounds = tuple((place[a], place[a] + 1) for a in wide)
        return self._cut(node, value, tuple(a - offset for a in wide), bounds, head)

    def _merge_output(self, node: ir.Node) -> None:
        """A headed value that leaves the graph (new cache entries) is joined again, under its own name."""
        out = node.outputs[0]
        whole = self._headed.get(out)
        if whole is None:
            return
        if len(whole.axes) != 1:
            raise UnsupportedError(f"graph output {out.name} has heads on several axes")
        self._join(node, out, list(whole.heads), whole.axes[0])

    # -- moves ------------------------------------------------------------------------------------------

    def _keep(self, whole: ir.Value, axes: Sequence[int], sizes: Sequence[int], heads: Sequence[ir.Value]) -> None:
        for value in heads:
            self._encode(value, whole)
        self._headed[whole] = _Headed(tuple(axes), tuple(sizes), tuple(heads))

    def _encode(self, part: ir.Value, whole: ir.Value) -> None:
        encoding = self._table.get(str(whole.name))
        if encoding is not None and str(part.name) not in self._table:
            self._table.set(str(part.name), encoding)

    def _copy(self, anchor: ir.Node, node: ir.Node, inputs: Sequence[ir.Value | None], shape: Sequence[Dim],
              head: int) -> ir.Value:
        """node once more, for one head."""
        whole = node.outputs[0]
        out = edit.node_before(anchor, node.op_type, inputs, f"{whole.name}/h{head}", shape,
                               [a for a in node.attributes.values() if isinstance(a, ir.Attr)])
        made = out.producer()
        if made is not None:
            made.metadata_props.update(node.metadata_props)
        self._encode(out, whole)
        return out

    def _view(self, anchor: ir.Node, value: ir.Value, shape: Sequence[Dim], name: str) -> ir.Value:
        if edit.known_dims(value) == list(shape):
            return value
        target = [d if isinstance(d, int) else -1 for d in shape]
        if target.count(-1) > 1:
            raise UnsupportedError(f"{value.name}: reshaping two open dimensions to {list(shape)}")
        return edit.node_before(anchor, "Reshape", [value, edit.int_vector(self._graph, target)], name, shape)

    def _cut(self, anchor: ir.Node, value: ir.Value, axes: Sequence[int], bounds: Sequence[tuple[int, int]],
             head: int) -> ir.Value:
        """One head of a value that no projection makes (a cache input, a table); made once a head."""
        if value.is_initializer() and len(axes) == 1:
            return self._slice_constant(value, axes[0], *bounds[0], head)
        name = f"{value.name}/h{head}"
        for use in value.uses():
            if use.node.op_type == "Slice" and use.node.outputs[0].name == name:
                return use.node.outputs[0]
        vectors = [edit.int_vector(self._graph, v) for v in
                   ([b[0] for b in bounds], [b[1] for b in bounds], list(axes))]
        shape = _with(edit.known_dims(value), {a: b[1] - b[0] for a, b in zip(axes, bounds, strict=True)})
        out = edit.node_before(anchor, "Slice", [value, *vectors], name, shape)
        self._encode(out, value)
        return out

    def _slice_constant(self, value: ir.Value, axis: int, start: int, stop: int, head: int) -> ir.Value:
        array = edit.constant(value)
        if array is None:
            raise UnsupportedError(f"{value.name} is not a constant")
        out = edit.initializer(self._graph, f"{value.name}/h{head}", array.take(range(start, stop), axis))
        encoding = self._table.take(str(value.name), axis, start, stop)
        if encoding is not None:
            self._table.set(str(out.name), encoding)
        return out

    def _join(self, node: ir.Node, out: ir.Value, heads: Sequence[ir.Value], axis: int) -> None:
        joined = edit.node_before(node, "Concat", heads, f"{out.name}/joined", edit.known_dims(out),
                                  [ir.AttrInt64("axis", axis)])
        edit.take_over(out, joined)


def _source(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    if value is None:
        raise ValueError(f"{node.name} lacks its input")
    return value


def _size(dim: Dim) -> int:
    if not isinstance(dim, int):
        raise UnsupportedError(f"a head or channel dimension is open: {dim}")
    return dim


def _with(shape: Sequence[Dim], changes: dict[int, int]) -> list[Dim]:
    return [changes.get(i, d) for i, d in enumerate(shape)]


def _births(node: ir.Node) -> bool:
    """[.., n*d] -> [.., n, d] with more than one head, whose value reaches a product of two activations."""
    before, after = edit.known_dims(_source(node)), edit.known_dims(node.outputs[0])
    if len(after) < 2 or not isinstance(after[-1], int) or not isinstance(after[-2], int) or after[-2] == 1:
        return False
    if before[-1] != after[-2] * after[-1] or _tokens(before[:-1]) != _tokens(after[:-2]):
        return False
    return _reaches_product(node.outputs[0])


def _reaches_product(value: ir.Value, depth: int = 12) -> bool:
    for use in value.uses():
        if _is_attention(use.node):
            return True
        if depth and use.node.op_type != "Conv" and any(_reaches_product(o, depth - 1) for o in use.node.outputs):
            return True
    return False


def _is_attention(node: ir.Node) -> bool:
    """A product of two activations?"""
    return node.op_type == "MatMul" and not any(v is not None and _is_constant(v) for v in node.inputs)


def _is_constant(value: ir.Value) -> bool:
    turn = edit.producer(value, "Transpose")
    origin = turn.inputs[0] if turn is not None else value
    return origin is not None and origin.is_initializer()


def _tokens(shape: Sequence[Dim]) -> list[Dim]:
    return [d for d in shape if d != 1]


def _follow(before: Sequence[Dim], whole: _Headed, after: Sequence[Dim]) -> tuple[tuple[int, ...], ...] | None:
    """The head axes of a reshaped value, when the reshape leaves every other dimension alone."""
    first, last = whole.axes[0], whole.axes[-1]
    if list(whole.axes) != list(range(first, last + 1)):
        return None
    start = _skip(after, _tokens(before[:first]))
    end = len(after) - _skip(after[::-1], _tokens(before[last + 1:])[::-1])
    sizes = [d for d in after[start:end] if isinstance(d, int)]
    if len(sizes) != end - start or math.prod(sizes) != math.prod(whole.sizes):
        return None
    return tuple(range(start, end)), tuple(sizes)


def _skip(shape: Sequence[Dim], tokens: Sequence[Dim]) -> int:
    """How many leading dimensions of shape are these tokens, in order, and ones; all of it when they are not there."""
    due = list(tokens)
    for i, d in enumerate(shape):
        if due and d == due[0]:
            due.pop(0)
        elif d != 1:
            return len(shape) if due else i
    return len(shape)


def _merges(before: Sequence[Dim], whole: _Headed, after: Sequence[Dim]) -> bool:
    """[.., n, d] -> [.., n*d]?"""
    last = len(before) - 1
    return (whole.axes == (last - 1,) and after[-1] == math.prod(whole.sizes) * _size(before[last])
            and _tokens(before[:last - 1]) == _tokens(after[:-1]))
