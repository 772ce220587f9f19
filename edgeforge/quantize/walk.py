"""A float graph over calibration samples, stopping before every weight: what it reads is known, and its own
value is still open.

The weights before a stop are already quantized in the stream that the statistics come from, so every fit sees the
errors it has to live with. A second stream, of the float weights, says what it should have seen. Only what later
nodes read is kept between stops: memory is that of one block of the model, and of one sample's way through it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import onnx_ir as ir
import torch
from torch import Tensor

from edgeforge import torch_ops
from edgeforge.quantize.parameters import read
from edgeforge.quantize.products import Product, products
from edgeforge.quantize.weights.gram import Sum
from edgeforge.torch_ops import attention

Sample = Mapping[str, Tensor]
"""graph inputs by name"""


@dataclass(frozen=True)
class Stop:
    """Products that read one value in one way, and the nodes that have to run before it is there."""

    products: tuple[Product, ...]
    nodes: tuple[ir.Node, ...]
    kept: frozenset[ir.Value]
    """what later nodes read, this stop's own values included"""
    cut: ir.Value | None
    """the one value that everything here comes from, when there is one: between two of them lies a block"""

    @property
    def source(self) -> ir.Value:
        return self.products[0].source


@dataclass(frozen=True)
class Sums:
    """Over all tokens of all samples, X being what a stop's products read behind quantized weights, [tokens, n]; each
    token counts once, or as its importance says.

    gram: X'X. drift: X'(Xf - X) with the float model's Xf. streams: X'(rf - r) [n, o] by weight, where the
    product joins a stream r. The last two are there when both streams run.
    """

    gram: Tensor
    drift: Tensor | None
    streams: Mapping[str, Tensor]


def stops(graph: ir.Graph, streams: bool) -> list[Stop]:
    """Where to stop, in graph order.

    Args:
        streams: each stop has its products' streams too, where nothing but weights fitted before makes them.
    """
    order = {node: i for i, node in enumerate(graph)}
    groups: dict[tuple[object, ...], list[Product]] = {}
    for product in products(graph):
        groups.setdefault((product.source, *product.reading), []).append(product)
    done: set[ir.Node] = set()
    unfitted = {product.node for group in groups.values() for product in group}
    found = []
    for group in groups.values():
        first = missing([group[0].source], done)
        joined = {p.stream for p in group if streams and p.stream is not None
                  and not unfitted & missing([p.stream], done | first)}
        group = [p if p.stream in joined else dataclasses.replace(p, stream=None, turns=()) for p in group]
        unfitted -= {p.node for p in group}
        wanted = [group[0].source, *joined]
        nodes = sorted(missing(wanted, done), key=order.__getitem__)
        done.update(nodes)
        found.append((group, nodes, set(done), set(wanted)))
    kept = [frozenset(_alive(before) | wanted) for _, _, before, wanted in found]
    return [Stop(tuple(group), tuple(nodes), alive, _cut(alive, set(nodes)))
            for (group, nodes, _, _), alive in zip(found, kept, strict=True)]


def _cut(kept: frozenset[ir.Value], nodes: set[ir.Node]) -> ir.Value | None:
    """The value among kept that all others are computed from, by nodes and parameters alone."""
    made = [v for v in kept if v.producer() is not None]
    for value in made:
        own = value.producer()
        if all(other is value or _from(other, value, nodes - {own}) for other in made):
            return value
    return None


def _from(value: ir.Value, start: ir.Value, nodes: AbstractSet[ir.Node | None]) -> bool:
    """Does value come from start through nodes, and from nothing else that a node made?"""
    todo = [value]
    while todo:
        node = todo.pop().producer()
        if node is None:
            continue
        if node not in nodes:
            return False
        todo += [v for v in node.inputs if v is not None and v is not start]
    return True


def between(start: ir.Value, ends: Iterable[ir.Value]) -> tuple[ir.Node, ...]:
    """The nodes that make ends from start, in graph order."""
    found: set[ir.Node] = set()
    todo = [v for v in ends if v is not start]
    while todo:
        node = todo.pop().producer()
        if node is not None and node not in found:
            found.add(node)
            todo += [v for v in node.inputs if v is not None and v is not start]
    graph = start.graph
    return tuple(n for n in graph if n in found) if graph is not None else ()


def missing(wanted: Sequence[ir.Value], done: set[ir.Node]) -> set[ir.Node]:
    """The nodes that make wanted, less those done."""
    found: set[ir.Node] = set()
    todo = list(wanted)
    while todo:
        node = todo.pop().producer()
        if node is not None and node not in done and node not in found:
            found.add(node)
            todo += [v for v in node.inputs if v is not None]
    return found


def _alive(done: set[ir.Node]) -> set[ir.Value]:
    """Outputs of done nodes that a node not done reads."""
    return {v for node in done for v in node.outputs if any(u.node not in done for u in v.uses())}


class Walk:
    """Two streams through one graph: behind quantized weights, and (when both) behind the float ones.

    Args:
        shares: by weight name, for each sample: what each token counts, [tokens]; all alike without.
    """

    def __init__(self, graph: ir.Graph, samples: Sequence[Sample], both: bool,
                 shares: Mapping[str, Sequence[Tensor]] | None = None) -> None:
        self._shares = shares or {}
        self.stops = stops(graph, both)
        self._attention = attention.find(graph)
        self._inner = {node for whole in self._attention.values() for node in whole.inner}
        inputs = {str(v.name): v for v in graph.inputs}
        start = [{inputs[name]: tensor for name, tensor in sample.items()} for sample in samples]
        self._inputs = set(inputs.values())
        self._quantized = start
        self._float = [dict(values) for values in start] if both else None
        self._replaced: dict[ir.Value, Tensor] = {}

    def replace(self, product: Product, matrix: Tensor) -> None:
        """From here on the quantized stream reads product with this weight, [inputs, outputs]."""
        self._replaced[product.weight] = product.restored(matrix)

    def visit(self) -> Iterator[Stop]:
        """Every stop, both streams being there; `replace` its weights before asking for the next."""
        for stop in self.stops:
            self._advance(stop)
            yield stop

    def quantized(self, value: ir.Value) -> list[dict[ir.Value, Tensor]]:
        """For each sample the graph's inputs and value, behind quantized weights."""
        return [{v: t for v, t in values.items() if v in self._inputs or v is value} for values in self._quantized]

    def truth(self, value: ir.Value) -> list[Tensor]:
        """For each sample value as the float model has it; ValueError when its stream does not run."""
        if self._float is None:
            raise ValueError("the float stream does not run")
        return [values[value] for values in self._float]

    def share(self, name: str) -> Sequence[Tensor | None]:
        """What each token counts for a weight, for each sample."""
        return self._shares.get(name) or [None] * len(self._quantized)

    @torch.no_grad()
    def resume(self, stop: Stop, nodes: Sequence[ir.Node], starts: Sequence[dict[ir.Value, Tensor]],
               weights: Mapping[ir.Value, Tensor]) -> None:
        """Takes the quantized stream through nodes again, up to stop, from starts and with these weights."""
        own = {**constants(nodes), **weights}
        again = Stop(stop.products, tuple(nodes), stop.kept, stop.cut)
        self._quantized = [dict(values) for values in starts]
        for values in self._quantized:
            self._run(again, values, own)

    @torch.no_grad()
    def _advance(self, stop: Stop) -> None:
        own = constants(stop.nodes)
        for values in self._quantized:
            self._run(stop, values, own | {v: t for v, t in self._replaced.items() if v in own})
        for values in self._float or []:
            self._run(stop, values, own)
        for value in own:
            self._replaced.pop(value, None)

    def _run(self, stop: Stop, values: dict[ir.Value, Tensor], own: Mapping[ir.Value, Tensor]) -> None:
        for node in stop.nodes:
            if node in self._inner:
                continue
            whole = self._attention.get(node)
            read = node.inputs if whole is None else whole.inputs
            inputs = [None if v is None else own[v] if v in own else values[v] for v in read]
            made = torch_ops.evaluate(node, inputs) if whole is None else attention.evaluate(inputs)
            values.update(zip(node.outputs, made, strict=False))
        for value in [v for v in values if v not in stop.kept and v not in self._inputs]:
            del values[value]

    @torch.no_grad()
    def sums(self, stop: Stop) -> Sums:
        """Of the stop that was visited last."""
        gram: Sum | None = None
        drift: Tensor | None = None
        streams: dict[str, Tensor] = {}
        for index, values in enumerate(self._quantized):
            x = stop.products[0].rows(values[stop.source])
            weighted = self._weighted(stop, index, x)
            gram = gram or Sum(x.shape[1])
            gram.add(weighted, x)
            if self._float is None:
                continue
            other = self._float[index]
            drift = _add(drift, weighted.T @ (stop.products[0].rows(other[stop.source]) - x))
            for product in stop.products:
                if product.stream is not None:
                    gone = product.joined(other[product.stream]) - product.joined(values[product.stream])
                    streams[product.name] = _add(streams.get(product.name), weighted.T @ gone)
        if gram is None:
            raise ValueError("a walk needs at least one sample")
        return Sums(gram.matrix, drift, streams)

    def _weighted(self, stop: Stop, sample: int, x: Tensor) -> Tensor:
        """x with each row times what its token counts, on average over the stop's products."""
        shares = [self._shares[p.name][sample] for p in stop.products if p.name in self._shares]
        return x * torch.stack(shares).mean(0)[:, None] if shares else x


def _add(total: Tensor | None, more: Tensor) -> Tensor:
    return more if total is None else total.add_(more)


def constants(nodes: Sequence[ir.Node]) -> dict[ir.Value, Tensor]:
    """The parameters that nodes read."""
    return {value: read(value) for node in nodes for value in node.inputs
            if value is not None and value.is_initializer() and value.const_value is not None}
