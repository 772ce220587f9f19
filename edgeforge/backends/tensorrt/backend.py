"""The TensorRT backend as the pipeline sees it. What does the work is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeforge.backends.tensorrt import limits, wheel
from edgeforge.backends.tensorrt.faults import FAULTS
from edgeforge.backends.tensorrt.job import EXECUTOR
from edgeforge.errors import UnsupportedError
from edgeforge.findings import Facts, Finding

if TYPE_CHECKING:
    from edgeforge_runtime.executors import Executor
    from edgeforge_runtime.manifest import Part, Target

    from edgeforge.backends.health import Abilities, Card, Proof, Tool
    from edgeforge.backends.tensorrt.trial import TrtTrial
    from edgeforge.build import Build
    from edgeforge.gates import Check
    from edgeforge.targets import Chip


class TrtBackend:
    """Stateless; see Backend for what the pipeline expects."""

    not_seen = (
        "What was built was not run: no GPU was used. Latency, memory and numbers on a GPU are not measured here; "
        "`edgeforge selfcheck BUNDLE` measures them on the machine that has it.",
        "Of an engine that was built here: that weights stayed packed and shared, that attention is one kernel and "
        "that caches are written in place is read from the builder's account; where it is for several GPUs, of the "
        "oldest one's kernels.",
        "The emitted ONNX was compared on onnxruntime's CPU, whose float16 arithmetic is not the GPU's.",
    )
    graph_not_seen = not_seen[:1]
    decisive = wheel.DECISIVE
    suffixes = (".engine",)
    alike = ("compute", "tensorrt")
    faults = FAULTS

    def check(self, facts: Facts) -> Iterator[Finding]:
        return limits.check(facts)

    def compile(self, build: Build, sources: Mapping[str, Path], out: Path) -> list[Check]:
        from edgeforge.backends.tensorrt import decoder

        return decoder.compile_decoder(build, sources, out)

    def bundle(self, build: Build, sources: Mapping[str, Path], bundle: Path) -> dict[str, Target]:
        from edgeforge.backends.tensorrt import decoder

        return decoder.bundle_decoder(build, sources, bundle)

    def compile_graph(self, build: Build, quantized: Path, vectors: Path, out: Path) -> list[Check]:
        raise _no_graphs()

    def bundle_graph(self, source: Part, compiled: Path, bundle: Path) -> dict[str, Target]:
        raise _no_graphs()

    def tools(self) -> list[Tool]:
        from edgeforge.backends.tensorrt import health

        return health.tools()

    def card(self, chip: Chip) -> Card:
        return limits.card(chip)

    def simulators(self) -> Mapping[str, Callable[[Target, Path], Executor]]:
        return {}

    def caution(self, target: Target) -> str:
        return "needs the NVIDIA GPU that the engine was built for" if target.executor == EXECUTOR else ""

    def abilities(self, chip: Chip) -> Abilities:
        from edgeforge.backends.tensorrt import health

        return health.abilities(chip)

    def proof(self, chip: Chip) -> Proof:
        from edgeforge.backends.tensorrt import health

        return health.proof(chip)

    def describe(self, paths: Sequence[Path]) -> list[dict[str, Any]]:
        from edgeforge.backends.tensorrt import describe

        return describe.describe(paths)

    def brief(self, facts: dict[str, Any]) -> dict[str, Any]:
        from edgeforge.backends.tensorrt import describe

        return describe.brief(facts)

    def trials(self, folder: Path) -> list[TrtTrial] | None:
        from edgeforge.backends.tensorrt import trial

        return trial.of_job(folder)

    def trial(self, model: Path, feeds: Path | None, chip: Chip) -> TrtTrial:
        from edgeforge.backends.tensorrt import trial

        return trial.of_file(model, feeds, chip)


def _no_graphs() -> UnsupportedError:
    """`check` refuses such a recipe before."""
    return UnsupportedError("a plain graph for TensorRT", "language models are built for GPUs")


BACKEND = TrtBackend()
