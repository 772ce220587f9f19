"""The QNN backend as the pipeline sees it. What does the work is imported when it is asked for: a build that finds
everything finished asks for the check alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeforge.backends.qnn import limits, wheel
from edgeforge.backends.qnn.faults import FAULTS
from edgeforge.backends.qnn.job import EXECUTOR
from edgeforge.findings import Facts, Finding

if TYPE_CHECKING:
    from edgeforge_runtime.executors import Executor
    from edgeforge_runtime.manifest import Part, Target

    from edgeforge.backends.health import Abilities, Card, Proof, Tool
    from edgeforge.backends.qnn.trial import QnnTrial
    from edgeforge.build import Build
    from edgeforge.gates import Check
    from edgeforge.targets import Chip


class QnnBackend:
    """Stateless; see Backend for what the pipeline expects."""

    not_seen = (
        "No device was used: latency, memory and accuracy on a phone are not measured here.",
        "The device binary with shared weights cannot be loaded on x86. Its graphs ran in the process that "
        "compiled them, and it and its unshared x86 twin were read back and compared: graph names, inputs, "
        "outputs, encodings, op counts, chip.",
        "Emulator times say nothing about device times.",
    )
    graph_not_seen = (
        not_seen[0],
        "The binary in the bundle is the one that ran on Qualcomm's x86 emulator, whose times say nothing about device "
        "times.",
    )
    decisive = (wheel.DISTRIBUTION,)
    suffixes = (".bin",)
    alike = ("soc", "arch", "qairt")
    faults = FAULTS

    def check(self, facts: Facts) -> Iterator[Finding]:
        return limits.check(facts)

    def compile(self, build: Build, sources: Mapping[str, Path], out: Path) -> list[Check]:
        from edgeforge.backends.qnn import decoder

        return decoder.compile_parts(build, sources["split"], out)

    def bundle(self, build: Build, sources: Mapping[str, Path], bundle: Path) -> dict[str, Target]:
        from edgeforge.backends.qnn import decoder

        return decoder.bundle_parts(build, sources["compile"], sources["split"], bundle)

    def compile_graph(self, build: Build, quantized: Path, vectors: Path, out: Path) -> list[Check]:
        from edgeforge.backends.qnn import plain

        return plain.compile_graph(build, quantized, vectors, out)

    def bundle_graph(self, source: Part, compiled: Path, bundle: Path) -> dict[str, Target]:
        from edgeforge.backends.qnn import plain

        return plain.bundle_graph(source, compiled, bundle)

    def tools(self) -> list[Tool]:
        from edgeforge.backends.qnn import health

        return health.tools()

    def card(self, chip: Chip) -> Card:
        return limits.card(chip)

    def simulators(self) -> Mapping[str, Callable[[Target, Path], Executor]]:
        return {}

    def caution(self, target: Target) -> str:
        return "Qualcomm's HTP emulator on this CPU, not a device" if target.executor == EXECUTOR else ""

    def abilities(self, chip: Chip) -> Abilities:
        from edgeforge.backends.qnn import health

        return health.abilities(chip)

    def proof(self, chip: Chip) -> Proof:
        from edgeforge.backends.qnn import health

        return health.proof(chip)

    def describe(self, paths: Sequence[Path]) -> list[dict[str, Any]]:
        from edgeforge.backends.qnn import describe

        return describe.describe(paths)

    def brief(self, facts: dict[str, Any]) -> dict[str, Any]:
        from edgeforge.backends.qnn import describe

        return describe.brief(facts)

    def trials(self, folder: Path) -> list[QnnTrial] | None:
        from edgeforge.backends.qnn import trial

        return trial.of_job(folder)

    def trial(self, model: Path, feeds: Path | None, chip: Chip) -> QnnTrial:
        from edgeforge.backends.qnn import trial

        return trial.of_file(model, feeds, chip)


BACKEND = QnnBackend()
