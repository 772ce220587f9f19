"""coreml-sim: a finished package as an executor of the runtime, on any machine. Its times say nothing of a device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from edgeforge_runtime.executors.base import Arrays, run_parts
from edgeforge_runtime.manifest import LOGITS, Graph, Part

from edgeforge.backends.coreml.interpret.run import Interpreter, Rounding


class SimulatorExecutor:
    """Runs the function that a part's graph names; the pieces of the logits are joined as an app joins them.

    last: what went into and came out of each function's last call, as the package names it.
    """

    def __init__(self, package: Path, rounding: Rounding = "float16") -> None:
        self._interpreter = Interpreter.open(package, rounding)
        self.last: dict[str, tuple[Arrays, Arrays]] = {}

    def run(self, graph: Graph, feeds: Arrays) -> Arrays:
        """See Executor.run."""
        return run_parts(graph, feeds, self._run)

    def close(self) -> None:
        """Frees the weights."""
        self._interpreter = Interpreter({}, self._interpreter.rounding)

    def _run(self, part: Part, feeds: Arrays) -> Arrays:
        made = self._interpreter.run(part.graph, feeds)
        # The session's cache goes on changing in place.
        self.last[part.graph] = {name: array.copy() for name, array in feeds.items()}, dict(made)
        made = join_logits(made)
        return {t.name: made[t.name].astype(t.dtype) for t in part.outputs}


def join_logits(made: Arrays) -> Arrays:
    """With the pieces `logits_0`, `logits_1`, ... as one `logits`."""
    count = sum(name.startswith(f"{LOGITS}_") for name in made)
    pieces = [made[f"{LOGITS}_{i}"] for i in range(count)]
    rest = {name: array for name, array in made.items() if not name.startswith(f"{LOGITS}_")}
    return rest | ({LOGITS: np.concatenate(pieces, -1)} if pieces else {})
