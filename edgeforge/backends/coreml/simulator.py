"""coreml-sim: finished packages as an executor of the runtime, on any machine. Its times say nothing of a device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgeforge_runtime.executors.base import Arrays, join_logits, run_parts
from edgeforge_runtime.executors.coreml import package
from edgeforge_runtime.manifest import Graph, Part, Target

from edgeforge.backends.coreml.interpret.run import Interpreter, Rounding


class SimulatorExecutor:
    """Runs the function that a part's graph names, one package after the other; the pieces of the logits are joined as
    an app joins them.

    last: what went into and came out of each function's last call by the part's file and function, as the package
    names it; before it, the states that it found.
    """

    def __init__(self, packages: Mapping[str, Path], rounding: Rounding = "float16") -> None:
        """packages: by the part's file."""
        self.packages = dict(packages)
        self._interpreters = {file: Interpreter.open(path, rounding) for file, path in packages.items()}
        self.last: dict[tuple[str, str], tuple[Arrays, Arrays, Arrays]] = {}

    @classmethod
    def of(cls, target: Target, folder: Path, rounding: Rounding = "float16") -> SimulatorExecutor:
        """The packages of a bundle's target."""
        files = dict.fromkeys(part.file for graph in target.graphs for part in graph.parts)
        return cls({file: package(folder / file) for file in files}, rounding)

    def run(self, graph: Graph, feeds: Arrays) -> Arrays:
        """See Executor.run."""
        return run_parts(graph, feeds, self._run)

    def close(self) -> None:
        """Frees the weights."""
        self._interpreters.clear()

    def _run(self, part: Part, feeds: Arrays) -> Arrays:
        interpreter = self._interpreters[part.file]
        before = {name: held.numpy().copy() for name, held in interpreter.states.items()}
        made = interpreter.run(part.graph, feeds)
        # The session's cache goes on changing in place.
        given = {name: array.copy() for name, array in feeds.items()}
        self.last[part.file, part.graph] = before, given, dict(made)
        joined = join_logits(made)
        return {t.name: joined[t.name].astype(t.dtype) for t in part.outputs}
