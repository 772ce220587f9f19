"""What a float model holds on text: ranges of every activation, and chosen values for whoever asks.

Ranges are reductions inside the graph: only two floats a value leave it. A tapped value leaves whole.
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
from edgeforge.graph import edit, store
from edgeforge.quantize import roles

_LOWS, _HIGHS = "edgeforge.lows", "edgeforge.highs"


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
    """Adds two outputs, float32 [n] minima and maxima of the watched values; returns their names in order."""
    graph = model.graph
    watched = sources(graph)
    axis = edit.int_vector(graph, [1])
    for label, op in ((_LOWS, "ReduceMin"), (_HIGHS, "ReduceMax")):
        parts: list[ir.Value] = []
        for value in watched:
            kind = ir.TensorType(ir.DataType.FLOAT)
            out = ir.Value(name=f"{value.name}/{op}", shape=ir.Shape([]), type=kind)
            graph.append(ir.Node("", op, [value], attributes=[ir.AttrInt64("keepdims", 0)], outputs=[out]))
            row = ir.Value(name=f"{value.name}/{op}/row", shape=ir.Shape([1]), type=out.type)
            graph.append(ir.Node("", "Reshape", [out, axis], outputs=[row]))
            parts.append(row)
        joined = ir.Value(name=label, shape=ir.Shape([len(parts)]), type=ir.TensorType(ir.DataType.FLOAT))
        graph.append(ir.Node("", "Concat", parts, attributes=[ir.AttrInt64("axis", 0)], outputs=[joined]))
        graph.outputs.append(joined)
    return [str(v.name) for v in watched]


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
        made: dict[str, Any] = dict(zip(self._outputs, self._session.run(None, feeds), strict=True))
        for name in self._taps:
            self._see(name, made[name])
        return made

    def close(self) -> None:
        del self._session


class ObservingExecutor(TappedExecutor):
    """A graph whose calls widen ranges by what every activation holds, and count what goes into the caches."""

    def __init__(self, model: ir.Model, ranges: Ranges, folder: Path, threads: int) -> None:
        self._names = instrument(model)
        self._ranges = ranges
        self.histograms = {str(v.name): Histogram() for v in model.graph.outputs if str(v.name).startswith("past_")}
        super().__init__(model, self.histograms, self._count, folder, threads)

    def _count(self, name: str, array: npt.NDArray[np.float32]) -> None:
        self.histograms[name].see(array)

    def run(self, graph: Graph, feeds: Arrays) -> Arrays:
        made = super().run(graph, feeds)
        lows, highs = made.pop(_LOWS), made.pop(_HIGHS)
        for name, low, high in zip(self._names, lows, highs, strict=True):
            self._ranges.widen(name, float(low), float(high))
        return made
