"""Cuts a decoder into parts, by bytes: embedding | decoder parts | LM head.

A graph can be cut where exactly one computed value is alive; graph inputs (mask, RoPE rows, cache) and views
of them may be read on both sides. The plan follows from the weights' bytes and a limit a part, not from a
table of models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import onnx_ir as ir

from edgeforge.encodings import Table
from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit
from edgeforge.graph.parts import fit, largest

_VIEWS = ("Squeeze", "Unsqueeze", "Reshape", "Transpose", "DequantizeLinear")


@dataclass(frozen=True)
class Cut:
    """A place where the graph can be cut: the value that crosses, and what lies before it.

    bytes: weights before; products: nodes with a weight matrix before.
    """

    value: str
    bytes: int
    products: int
    caches: int


@dataclass(frozen=True)
class Plan:
    """The values at which the parts meet, and each part's weight bytes."""

    cuts: tuple[str, ...]
    bytes: tuple[int, ...]


def stored(graph: ir.Graph, table: Table) -> dict[str, int]:
    """Bytes that each weight's codes and its blocks' scales take, by name."""
    return {name: v.const_value.size * e.bits // 8 + (0 if e.block_scale is None else e.block_scale.size)
            for name, v in graph.initializers.items() if v.const_value is not None and (e := table.get(name))}


def cut_points(graph: ir.Graph, sizes: Mapping[str, int]) -> list[Cut]:
    """Every place where one computed value is alive, in graph order.

    sizes: bytes of weights; without an entry a weight counts as the graph holds it.
    """
    pending: dict[ir.Value, int] = {}
    seen: set[ir.Value] = set()
    cuts: list[Cut] = []
    total = products = caches = 0
    for node in graph:
        fresh = [v for v in node.inputs if v is not None and v.is_initializer() and v not in seen]
        seen.update(fresh)
        total += sum(_bytes(v, sizes) for v in fresh)
        products += _is_product(node)
        caches += sum(v is not None and str(v.name).startswith("past_") and v.is_graph_input() for v in node.inputs)
        for value in node.inputs:
            if value in pending:
                pending[value] -= 1
                if not pending[value]:
                    del pending[value]
        for value in node.outputs:
            if (readers := len(list(value.uses()))) and not _is_view_of_input(value):
                pending[value] = readers
        if len(pending) == 1:
            cuts.append(Cut(str(next(iter(pending)).name), total, products, caches))
    return cuts


def plan(graph: ir.Graph, sizes: Mapping[str, int], limit: int) -> Plan:
    """Embedding, decoder parts of at most limit bytes (balanced, cut between layers), LM head; sizes as in cut_points.

    Raises:
        UnsupportedError: the graph has no such places, or one layer is already larger than limit.
    """
    cuts = cut_points(graph, sizes)
    total = sum(_bytes(v, sizes) for v in graph.initializers.values() if v.uses())
    products = sum(map(_is_product, graph))
    before = [c for c in cuts if c.products == 0]
    after = [c for c in cuts if c.products == products - 1 and c.caches == cuts[-1].caches]
    if not before or not after or products < 3:
        raise UnsupportedError("the graph is not embedding, layers and LM head in a row: it has no place to cut")
    first, last = before[-1], after[0]
    layers = _layer_ends(cuts, first, last)
    ends = [c.bytes for c in layers]
    chosen = fit(ends, first.bytes, last.bytes, limit)
    if chosen is None:
        raise UnsupportedError(f"one layer needs {largest(ends, first.bytes, last.bytes):,} bytes of weights, "
                               f"the limit a part is {limit:,}",
                               "raise `split.part_bytes`, or take fewer bits a weight")
    at = [first, *(layers[i] for i in chosen), last]
    between = (b.bytes - a.bytes for a, b in pairwise(at))
    return Plan(tuple(c.value for c in at), (first.bytes, *between, total - last.bytes))


def _layer_ends(cuts: Sequence[Cut], first: Cut, last: Cut) -> list[Cut]:
    """The last cut between two layers' caches: the residual stream behind each layer."""
    ends: dict[int, Cut] = {}
    for cut in cuts:
        if first.bytes < cut.bytes < last.bytes and cut.caches > first.caches:
            ends.setdefault(cut.caches, cut)
            if cut.products >= ends[cut.caches].products:
                ends[cut.caches] = cut
    return [c for c in ends.values() if c.caches < last.caches]


def extract(model: ir.Model, cuts: Sequence[str], outputs: Sequence[str]) -> list[ir.Model]:
    """The parts, in order, as models of their own; hand-over values keep their names.

    outputs: the graph's output names in contract order; each part yields those it makes.
    """
    graph = model.graph
    values = ir.convenience.create_value_mapping(graph)
    homes = _homes(graph, cuts)
    parts: list[ir.Model] = []
    for k in range(len(cuts) + 1):
        mine = [n for n in graph if homes[n] == k]
        made = {v.name for n in mine for v in n.outputs}
        leaving = [n for n in outputs if n in made] + ([cuts[k]] if k < len(cuts) else [])
        entering = [cuts[k - 1]] if k else []
        read = _read([values[n] for n in leaving], set(entering))
        entering += [str(v.name) for v in graph.inputs if v in read]
        sub = ir.convenience.extract(graph, [values[n] for n in entering], [values[n] for n in leaving])
        _reorder(sub, graph)
        parts.append(ir.Model(sub, ir_version=model.ir_version, metadata_props=dict(model.metadata_props)))
    return parts


def _reorder(sub: ir.Graph, graph: ir.Graph) -> None:
    """onnx_ir hands the initializers of an extract over in a set's order, another one in every process."""
    kept = dict(sub.initializers)
    sub.initializers.clear()
    for name in (n for n in graph.initializers if n in kept):
        sub.initializers[name] = kept[name]


def _origin(value: ir.Value | None) -> ir.Value | None:
    """What value is a view of."""
    while (node := edit.producer(value, *_VIEWS)) is not None:
        value = node.inputs[0]
    return value


def _is_view_of_input(value: ir.Value) -> bool:
    """A part that reads it makes it itself."""
    origin = _origin(value)
    return origin is not None and (origin.is_graph_input() or origin.is_initializer())


def _is_product(node: ir.Node) -> bool:
    """A product with a weight matrix?"""
    origin = _origin(node.inputs[1]) if node.op_type in ("Conv", "Gemm", "MatMul") else None
    return origin is not None and origin.is_initializer()


def _read(values: Sequence[ir.Value], known: set[str]) -> set[ir.Value]:
    """Everything that values are computed from, back to the values named in known."""
    todo, found = list(values), set[ir.Value]()
    while todo:
        value = todo.pop()
        node = value.producer() if value.name not in known and value not in found else None
        found.add(value)
        todo += [v for v in node.inputs if v is not None] if node is not None else []
    return found


def _homes(graph: ir.Graph, cuts: Sequence[str]) -> dict[ir.Node, int]:
    """Which part each node belongs to: the number of cuts that lie before it in graph order."""
    homes: dict[ir.Node, int] = {}
    k = 0
    for node in graph:
        homes[node] = k
        if k < len(cuts) and any(v.name == cuts[k] for v in node.outputs):
            k += 1
    return homes


def _bytes(value: ir.Value, sizes: Mapping[str, int]) -> int:
    return sizes.get(str(value.name), 0 if value.const_value is None else value.const_value.nbytes)
