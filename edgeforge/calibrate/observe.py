"""What a float model holds on text: ranges of every activation, and chosen values for whoever asks.

Ranges are reductions inside the graph: only three floats a value leave it. A tapped value leaves whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime as ort
from edgeforge_runtime.executors.base import Arrays
from edgeforge_runtime.manifest import Graph

from edgeforge.calibrate.histogram import Histogram
from edgeforge.errors import EdgeForgeError
from edgeforge.graph import edit, store
from edgeforge.quantize import roles

_LOWS, _HIGHS, _BROKEN = "edgeforge.lows", "edgeforge.highs", "edgeforge.broken"


def sources(graph: ir.Graph) -> list[ir.Value]:
    """The values to watch: activations that a move does not only pass on; all other ranges follow."""
    found: list[ir.Value] = []
    fixed = _from_constants(graph)
    for value in roles.values(graph):
        node = value.producer()
        if value not in fixed and not value.is_initializer() and (node is None or not roles.moves(node)):
            found.append(value)
    return found


def _from_constants(graph: ir.Graph) -> set[ir.Value]:
    fixed = set(graph.initializers.values())
    for node in graph:
        if node.inputs and all(v is None or v in fixed for v in node.inputs):
            fixed.update(node.outputs)
    return fixed


def instrument(model: ir.Model) -> list[str]:
    """Adds three outputs, float32 [n]: minima and maxima of the watched values, which skip NaN, and the sum of each
    less itself: 0, or NaN when anything in it is not finite. Returns their names in order."""
    graph = model.graph
    watched = sources(graph)
    nothing = [_none_left(graph, value) for value in watched]
    for label, op, values in ((_LOWS, "ReduceMin", watched), (_HIGHS, "ReduceMax", watched),
                              (_BROKEN, "ReduceSum", nothing)):
        _join(graph, label, [_reduced(graph, op, value) for value in values])
    return [str(v.name) for v in watched]


def _none_left(graph: ir.Graph, value: ir.Value) -> ir.Value:
    made = ir.Value(name=f"{value.name}/less_itself", shape=value.shape, type=value.type)
    graph.append(ir.Node("", "Sub", [value, value], outputs=[made]))
    return made


def _reduced(graph: ir.Graph, op: str, value: ir.Value) -> ir.Value:
    """One number of value, as float32 [1]."""
    kind = ir.TensorType(ir.DataType.FLOAT)
    out = ir.Value(name=f"{value.name}/{op}", shape=ir.Shape([]), type=kind)
    graph.append(ir.Node("", op, [value], attributes=[ir.AttrInt64("keepdims", 0)], outputs=[out]))
    row = ir.Value(name=f"{value.name}/{op}/row", shape=ir.Shape([1]), type=kind)
    graph.append(ir.Node("", "Reshape", [out, edit.int_vector(graph, [1])], outputs=[row]))
    return row


def _join(graph: ir.Graph, label: str, parts: list[ir.Value]) -> None:
    joined = ir.Value(name=label, shape=ir.Shape([len(parts)]), type=ir.TensorType(ir.DataType.FLOAT))
    graph.append(ir.Node("", "Concat", parts, attributes=[ir.AttrInt64("axis", 0)], outputs=[joined]))
    graph.outputs.append(joined)


@dataclass
class Ranges:
    """Smallest and largest value seen, by value name."""

    seen: dict[str, tuple[float, float]] = field(default_factory=dict)

    def widen(self, name: str, low: float, high: float) -> None:
        old = self.seen.get(name, (math.inf, -math.inf))
        self.seen[name] = (min(old[0], low), max(old[1], high))


See = Callable[[str, npt.NDArray[np.float32]], None]
"""takes a tapped value's name and what it held in one graph call"""


class TappedExecutor:
    """Runs a float graph in the decode loop's place and shows chosen values of every call."""

    def __init__(self, model: ir.Model, taps: Collection[str], see: See, folder: Path, threads: int) -> None:
        """Writes the graph, with taps among its outputs, into folder (an existing, empty one)."""
        self._see = see
        self._taps = tuple(dict.fromkeys(taps))  # in order: sums of floats depend on it
        leaving = {str(v.name) for v in model.graph.outputs}
        wanted = set(self._taps) - leaving
        model.graph.outputs.extend(v for v in roles.values(model.graph) if v.name in wanted)
        path = store.save(model, folder)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._outputs = [o.name for o in self._session.get_outputs()]

    def run(self, graph: Graph, feeds: Arrays) -> Arrays:
        made = self._call(feeds)
        self._show(made)
        return made

    def _call(self, feeds: Arrays) -> dict[str, Any]:
        return dict(zip(self._outputs, self._session.run(None, feeds), strict=True))

    def _show(self, made: Arrays) -> None:
        for name in self._taps:
            require_finite(name, made[name])
            self._see(name, made[name])

    def close(self) -> None:
        del self._session


class ObservingExecutor(TappedExecutor):
    """A graph whose calls widen ranges by what every activation holds, and count what chosen ones hold."""

    def __init__(self, model: ir.Model, ranges: Ranges, folder: Path, threads: int, counted: Collection[str] = (),
                 ) -> None:
        self._names = instrument(model)
        self._ranges = ranges
        self.histograms = {name: Histogram() for name in counted}
        super().__init__(model, self.histograms, self._count, folder, threads)

    def _count(self, name: str, array: npt.NDArray[np.float32]) -> None:
        self.histograms[name].see(array)

    def run(self, graph: Graph, feeds: Arrays) -> Arrays:
        made = self._call(feeds)
        lows, highs, broken = (made.pop(label) for label in (_LOWS, _HIGHS, _BROKEN))
        for name, low, high, sign in zip(self._names, lows, highs, broken, strict=True):
            require_finite(name, np.array([low, high, sign]))  # in the graph's order: the first is where it began
            self._ranges.widen(name, float(low), float(high))
        self._show(made)
        return made


def require_finite(name: str, array: npt.NDArray[np.floating]) -> None:
    """EdgeForgeError naming the value when anything in array is not finite: no grid holds it."""
    if not np.isfinite(array).all():
        raise EdgeForgeError(
            f"the float model's {name!r} is not finite on calibration data",
            "a logarithm or root of something negative, a division by zero, an overflow: run the float model on the "
            "same data, and mend the model, or leave out what it cannot read")
