"""A graph as pieces that can be taken out alone: cut where a tensor is on its integer grid.

Compilers for integer accelerators want quantized inputs and outputs, and judge an operator together with the
Quantize and Dequantize around it. So a QDQ graph is cut at the outputs of QuantizeLinear only; each piece between
is one unit. A graph without QuantizeLinear is cut at every value: each node is a unit. Nodes that no output of
the graph depends on are in no unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from edgeforge.errors import UnsupportedError

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


@dataclass(frozen=True)
class Unit:
    """Nodes that stay together, in graph order."""

    nodes: tuple[ir.Node, ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(str(n.name) for n in self.nodes)


class Pieces:
    """The units of a model, and models made of some of them.

    UnsupportedError: nothing is computed from the inputs, or a node holds a graph of its own (If, Loop, Scan).
    """

    def __init__(self, model: ir.Model) -> None:
        nested = [n for n in model.graph if any(a.type in _GRAPHS for a in n.attributes.values())]
        if nested:
            raise UnsupportedError(f"{nested[0].name} ({nested[0].op_type}) holds a graph of its own",
                                   "accelerators take straight-line graphs: unroll or fold it first")
        self._model = model
        self._cuttable = any(n.op_type == "QuantizeLinear" for n in model.graph)
        self._constant: set[ir.Node] = set()
        self._soft: set[ir.Node] = set()
        for node in model.graph:
            inputs = [v for v in node.inputs if v is not None]
            if all(self._is_constant(v) for v in inputs):
                self._constant.add(node)
            elif node.op_type == "DequantizeLinear" and self._is_boundary(inputs[0]):
                self._soft.add(node)
        self._live = _live(model.graph)
        self.units = self._units()
        if not self.units:
            raise UnsupportedError("the graph has no node that computes anything from its inputs")
        self._home = {node: i for i, unit in enumerate(self.units) for node in unit.nodes}

    def boundaries(self) -> list[ir.Value]:
        """Every value that a unit can hand on, in graph order; graph inputs first."""
        return [*self._model.graph.inputs, *self._handed_on(range(len(self.units)))]

    def inputs(self, chosen: Iterable[int]) -> list[ir.Value]:
        """What the chosen units read and do not make themselves."""
        mine = set(chosen)
        found: dict[ir.Value, None] = {}
        todo = [v for i in sorted(mine) for n in self.units[i].nodes for v in n.inputs]
        while todo:
            value = todo.pop(0)
            if value is None or self._is_constant(value):
                continue
            node = value.producer()
            if node is not None and node in self._soft:
                todo += list(node.inputs)
            elif node is None or self._home[node] not in mine:
                found[value] = None
        return list(found)

    def outputs(self, chosen: Iterable[int]) -> list[ir.Value]:
        """What the chosen units make for others: other units, the graph's outputs."""
        mine = set(chosen)
        return [v for v in self._handed_on(sorted(mine)) if v.is_graph_output() or not mine >= self._readers(v)]

    def model(self, chosen: Iterable[int]) -> ir.Model:
        """A model of the chosen units alone; its values keep their names."""
        mine = list(chosen)
        graph = ir.convenience.extract(self._model.graph, self.inputs(mine), self.outputs(mine))
        return ir.Model(graph, ir_version=self._model.ir_version)

    def holding(self, nodes: Iterable[str]) -> list[int]:
        """The units that hold these nodes, or read what a constant or dequantizing node of that name makes."""
        wanted = set(nodes)
        found = {i for i, unit in enumerate(self.units) if unit.names & wanted}
        for node in (n for n in self._constant | self._soft if n.name in wanted):
            found |= {i for v in node.outputs for i in self._readers(v)}
        return sorted(found)

    def _handed_on(self, chosen: Iterable[int]) -> Iterator[ir.Value]:
        """The outputs of these units that leave the graph or that a unit reads across a cut; not what nobody reads."""
        for value in (v for i in chosen for n in self.units[i].nodes for v in n.outputs if v.name):
            if value.is_graph_output() or (self._is_boundary(value) and self._readers(value)):
                yield value

    def _is_constant(self, value: ir.Value) -> bool:
        return value.is_initializer() or (value.producer() in self._constant)

    def _is_boundary(self, value: ir.Value) -> bool:
        node = value.producer()
        return node is None or not self._cuttable or node.op_type == "QuantizeLinear"

    def _readers(self, value: ir.Value) -> set[int]:
        """Units that read value, directly or through nodes that belong to no unit."""
        found: set[int] = set()
        for use in value.uses():
            if use.node in self._soft or use.node in self._constant:
                found |= {i for v in use.node.outputs for i in self._readers(v)}
            elif use.node in self._live:
                found.add(self._home[use.node])
        return found

    def _units(self) -> tuple[Unit, ...]:
        """Nodes joined wherever one reads what another makes and the value between is not a boundary."""
        idle = self._constant | self._soft
        core = [n for n in self._model.graph if n in self._live and n not in idle]
        leader = {n: n for n in core}

        def find(node: ir.Node) -> ir.Node:
            while leader[node] is not node:
                leader[node] = leader[leader[node]]
                node = leader[node]
            return node

        for node in core:
            for value in node.inputs:
                maker = value.producer() if value is not None else None
                if value is not None and maker in leader and not self._is_boundary(value):
                    leader[find(node)] = find(maker)
        groups: dict[ir.Node, list[ir.Node]] = {}
        for node in core:
            groups.setdefault(find(node), []).append(node)
        last = {n: i for i, n in enumerate(core)}
        return tuple(Unit(tuple(g)) for g in sorted(groups.values(), key=lambda g: last[g[-1]]))


def _live(graph: ir.Graph) -> set[ir.Node]:
    """The nodes that the graph's outputs depend on."""
    found: set[ir.Node] = set()
    todo = [v.producer() for v in graph.outputs]
    while todo:
        node = todo.pop()
        if node is not None and node not in found:
            found.add(node)
            todo += [v.producer() for v in node.inputs if v is not None]
    return found
