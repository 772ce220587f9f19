"""A static graph as one MIL function: each node through the lowering of its op, in graph order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgeforge.backends.coreml import laid, mil, state, weights
from edgeforge.backends.coreml.laid import Laid, Order
from edgeforge.backends.coreml.mil import Var, mb
from edgeforge.backends.coreml.weights import Format
from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit

Lowering = Callable[[ir.Node, "Work"], Laid | Sequence[Laid]]
"""what a node becomes: its outputs, in order"""


class Work:
    """One function while it is built: what a lowering reads."""

    def __init__(self, formats: Mapping[str, Format], taken: set[str]) -> None:
        self._formats = formats
        self._taken = taken
        self._values: dict[ir.Value, Laid] = {}
        self._arranged: dict[tuple[str, tuple[int | None, ...], tuple[int, ...]], Var] = {}
        self._weights: dict[str, Var] = {}
        self._states: dict[ir.Value, Var] = {}

    def hold(self, value: ir.Value, held: Var) -> None:
        """value is a cache that the function keeps."""
        self._states[value] = held

    def state(self, value: ir.Value | None) -> Var:
        """A cache that the function keeps."""
        if value is None or value not in self._states:
            raise ValueError(f"{value.name if value is not None else '?'} is no state")
        return self._states[value]

    def keep(self, value: ir.Value, made: Laid) -> None:
        """made is what value is from now on."""
        shape = static(value)
        if made.shape != shape:
            raise ValueError(f"{value.name}: lowered to {made.shape}, not {shape}")
        self._values[value] = made

    def found(self, value: ir.Value) -> Laid:
        """What value is."""
        return self._values[value]

    def read(self, node: ir.Node, index: int = 0) -> Laid:
        """A computed input of node."""
        value = node.inputs[index]
        if value is None or value not in self._values:
            raise UnsupportedError(f"{path(node)}: {node.op_type} reads a constant as its input {index}",
                                   "folding (`optimize`) leaves no such node of a decoder")
        return self._values[value]

    def arranged(self, value: Laid, order: Order) -> Var:
        """value stored in that order; made once."""
        key = value.var.name, tuple(value.wide(order)), tuple(value.stored(order))
        if key not in self._arranged:
            self._arranged[key] = laid.arrange(value, order)
        return self._arranged[key]

    def operand(self, node: ir.Node, index: int, rank: int, order: Order) -> Var:
        """An input of node, computed or constant, as one of that rank stored in that order."""
        value = node.inputs[index]
        if value is not None and value in self._values:
            return self.arranged(self._values[value].lifted(rank), order)
        array = edit.constant(value)
        if value is None or array is None:
            raise ValueError(f"{path(node)} lacks its input {index}")
        array = array.reshape((1,) * (rank - array.ndim) + array.shape)
        turned = array.transpose([a for a in order if a is not None])
        placed = turned.reshape([1 if a is None else array.shape[a] for a in order])
        return self.constant(str(value.name), placed, order)

    def weight(self, value: ir.Value | None) -> Var:
        """A parameter in its own shape and format."""
        array = edit.constant(value)
        if value is None or array is None:
            raise UnsupportedError(f"{value.name if value is not None else '?'}: a product reads a weight that is no "
                                   "constant")
        name = str(value.name)
        if name not in self._weights:
            self._weights[name] = weights.constant(name, array, self._formats.get(name), self.spell(name))
        return self._weights[name]

    def constant(self, name: str, array: npt.NDArray[Any], order: Order = ()) -> Var:
        """A float16 constant, stored once for all functions that read it in that order."""
        half = weights.half(name, array)
        if half.size == 1:
            return half.reshape(())[()]
        made = mb.const(val=np.ascontiguousarray(half), name=self.spell(name))
        mil.share(made, f"{name}:{order}:{'x'.join(map(str, half.shape))}")
        return made

    def spell(self, name: str) -> str:
        """The name in the program of what is called so in the graph."""
        return mil.spell(name, self._taken)

    def named(self, node: ir.Node) -> str:
        """The name of node's first output."""
        return self.spell(str(node.outputs[0].name))


def path(node: ir.Node) -> str:
    """Where node stands: the module path that the exporter gave its output."""
    return str(node.outputs[0].name)


def static(value: ir.Value) -> tuple[int, ...]:
    """value's shape; ValueError when a dimension is open."""
    shape = edit.known_dims(value)
    if not all(isinstance(d, int) for d in shape):
        raise ValueError(f"{value.name} has an open shape {shape}")
    return tuple(int(d) for d in shape)


def emit(graph: ir.Graph, formats: Mapping[str, Format], specification: int = mil.OLDEST) -> Any:
    """The function that computes graph, whose floats flow as float16 (mil.Function).

    Inputs and outputs keep their names and shapes; a cache that is written in place becomes a state.

    Raises:
        UnsupportedError: an op, a form of one or a weight's format that the Neural Engine does not take (named).
    """
    from edgeforge.backends.coreml.lower import TABLE

    kept = {v: state.name(str(v.name)) for v in graph.inputs if state.is_state(v)}
    given = [v for v in graph.inputs if v not in kept]
    inputs = {str(v.name): (static(v), mil.INT32 if _whole(v) else mil.FLOAT16) for v in given}
    work = Work(formats, {*inputs, *kept.values(), *(str(v.name) for v in graph.outputs)})
    with mil.function(inputs, {name: static(v) for v, name in kept.items()}, specification) as made:
        for value, name in kept.items():
            work.hold(value, made.inputs[name])
        for value in given:
            var, shape = made.inputs[str(value.name)], static(value)
            rank = len(shape)
            work.keep(value, Laid(var, laid.natural(rank)[-rank:], shape))
        for node in graph:
            lower = TABLE.get(node.op_type)
            if lower is None or node.domain not in ("", "ai.onnx"):
                raise UnsupportedError(f"{path(node)}: {node.op_type} has no lowering to Core ML",
                                       f"these have: {', '.join(sorted(TABLE))}")
            found = lower(node, work)
            for value, laid_out in zip(node.outputs, [found] if isinstance(found, Laid) else found, strict=True):
                work.keep(value, laid_out)
        made.set_outputs([_output(work, value) for value in graph.outputs])
    return made


def _output(work: Work, value: ir.Value) -> Var:
    """value as it leaves: in its own shape, under its own name."""
    shape = static(value)
    node = value.producer()
    if node is None:
        raise UnsupportedError(f"{value.name}: an output that nothing computes")
    var = laid.reshape(work.arranged(work.found(value), laid.natural(len(shape))), shape)
    return mb.identity(x=var, name=str(value.name))


def _whole(value: ir.Value) -> bool:
    return value.dtype in (ir.DataType.INT32, ir.DataType.INT64)
