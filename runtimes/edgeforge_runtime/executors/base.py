"""What every executor does, and the walk over a graph's parts that they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edgeforge_runtime.errors import ExecutorError
from edgeforge_runtime.manifest import LOGITS, Graph, Part

Arrays = dict[str, npt.NDArray[Any]]


class Executor(Protocol):
    """Runs graphs over codes: integers in, integers out; quantizing is the session's work."""

    def run(self, graph: Graph, feeds: Arrays) -> Arrays:
        """Runs the graph's parts in order; values flow between them by name.

        Args:
            feeds: one array per boundary input, with the dtype and shape that the manifest declares.

        Returns:
            One array per boundary output.

        Raises:
            ExecutorError: a feed does not match its declaration, or a part fails.
        """
        ...

    def close(self) -> None:
        """Frees files, threads and processes; a second call does nothing."""
        ...


def run_parts(graph: Graph, feeds: Arrays, run: Callable[[Part, Arrays], Arrays]) -> Arrays:
    """Checks the feeds, runs each part with the values it names, and keeps the boundary outputs."""
    inputs, outputs = graph.boundary()
    for tensor in inputs.values():
        fed = feeds.get(tensor.name)
        if fed is None:
            raise ExecutorError(f"graph {_label(graph)} got no {tensor.name}")
        if fed.dtype != np.dtype(tensor.dtype) or fed.shape != tensor.shape:
            raise ExecutorError(
                f"graph {_label(graph)} wants {tensor.name} as {tensor.dtype}{list(tensor.shape)}, "
                f"got {fed.dtype}{list(fed.shape)}"
            )
    values = dict(feeds)
    for part in graph.parts:
        values.update(run(part, {t.name: values[t.name] for t in part.inputs}))
    return {name: values[name] for name in outputs}


def join_logits(made: Arrays) -> Arrays:
    """With the pieces `logits_0`, `logits_1`, ..., in which a large vocabulary leaves some graphs, as one `logits`."""
    count = sum(name.startswith(f"{LOGITS}_") for name in made)
    pieces = [made[f"{LOGITS}_{i}"] for i in range(count)]
    rest = {name: array for name, array in made.items() if not name.startswith(f"{LOGITS}_")}
    return rest | ({LOGITS: np.concatenate(pieces, -1)} if pieces else {})


def _label(graph: Graph) -> str:
    return f"ar{graph.ar}_cl{graph.cl}"
