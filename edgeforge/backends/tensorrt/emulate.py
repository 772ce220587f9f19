"""The emitted ONNX on onnxruntime's CPU: the same operators, types and cache, in another's arithmetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from edgeforge_runtime.errors import ExecutorError
from edgeforge_runtime.executors.base import Arrays, run_parts
from edgeforge_runtime.executors.cpu import exact_options
from edgeforge_runtime.manifest import LOGITS, Graph, Part, Target, Tensor, new_name, past_layer

from edgeforge.backends.tensorrt.job import EXECUTOR, Shape
from edgeforge.graph import edit

FLOAT16_DB = 40.0
"""what two float16 arithmetics of one graph agree to at least: a build lets 50 pass between float16 and float32
(gates.emitted_db), and a GPU rounds elsewhere again; where codes flow they may flip, and there is no such bound"""
_QUIET = 4
"""onnxruntime's severity "fatal": it warns at every step that it copies the cache, which a GPU does not"""


class InPlaceOnCpu:
    """Runs the graph with caches of its own, handing what one call wrote to the next, as the GPU's memory does."""

    def __init__(self, model: Path, threads: int) -> None:
        options = exact_options()
        options.intra_op_num_threads = threads
        options.log_severity_level = _QUIET
        try:
            self._session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises a dozen unrelated classes
            raise ExecutorError(f"{model} does not load: {error}") from error
        self._caches: Arrays = {i.name: np.zeros(i.shape, np.float16) for i in self._session.get_inputs()
                                if past_layer(i.name)}

    def run(self, graph: Graph, feeds: Arrays) -> Arrays:
        """See Executor.run."""
        return run_parts(graph, feeds, self._run)

    def close(self) -> None:
        """Frees nothing: onnxruntime does."""

    def _run(self, part: Part, feeds: Arrays) -> Arrays:
        names = [LOGITS, *map(new_name, self._caches)]
        made = dict(zip(names, self._session.run(names, feeds | self._caches), strict=True))
        self._caches = {name: made[new_name(name)] for name in self._caches}
        return {LOGITS: made[LOGITS]}


def target(model: ir.Model, file: str, widths: list[int], context: int) -> Target:
    """The graphs as a manifest declares them: one part, a width each, without the caches, which the executor keeps.

    Args:
        file: what runs them, relative to the bundle.
    """
    def graph(number: int, ar: int) -> Graph:
        def tensors(values: list[ir.Value]) -> tuple[Tensor, ...]:
            return tuple(Tensor(str(v.name), _dtype(v), _shape(v, ar)) for v in values
                         if not str(v.name).startswith("past_"))
        inside = Part(file, f"profile_{number}", tensors(list(model.graph.inputs)), tensors(list(model.graph.outputs)))
        return Graph(ar, context, (inside,))
    codes = any(node.op_type == "QuantizeLinear" for node in model.graph)
    return Target(EXECUTOR, tuple(graph(i, ar) for i, ar in enumerate(widths)), least_db=None if codes else FLOAT16_DB)


def _shape(value: ir.Value, ar: int) -> Shape:
    return tuple(d if isinstance(d, int) else ar for d in edit.known_dims(value))


def _dtype(value: ir.Value) -> str:
    if value.dtype is None:
        raise ValueError(f"{value.name} has no type")
    return str(np.dtype(value.dtype.numpy()))
