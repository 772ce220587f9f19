"""The Core ML backend as the pipeline sees it. What does the work is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeforge.backends.coreml import limits, place, systems
from edgeforge.backends.coreml.target import COREAI, DEVICE, EXECUTOR, SIMULATOR
from edgeforge.errors import UnsupportedError
from edgeforge.findings import Facts, Finding

if TYPE_CHECKING:
    from edgeforge_runtime.executors import Executor
    from edgeforge_runtime.manifest import Part, Target

    from edgeforge.backends.faults import Fault
    from edgeforge.backends.health import Abilities, Card, Proof, Tool
    from edgeforge.backends.trial import Trial
    from edgeforge.build import Build
    from edgeforge.gates import Check
    from edgeforge.targets import Chip


class CoreMLBackend:
    """Stateless; see Backend for what the pipeline expects."""

    not_seen = (
        "No Apple device ran this package. Whether an op runs on the Neural Engine, and how fast, is decided there: "
        "`python device/verify_on_mac.py` tells on a Mac.",
        "The package was executed here op by op, sums in float32 and outputs rounded to float16; what the Neural "
        "Engine itself rounds is not published.",
    )
    graph_not_seen = not_seen
    decisive = (limits.DISTRIBUTION, "torch", *systems.COREAI)
    suffixes = (place.PACKAGE, place.ASSET)
    alike = ("read by",)
    faults: tuple[Fault, ...] = ()

    def check(self, facts: Facts) -> Iterator[Finding]:
        return limits.check(facts)

    def compile(self, build: Build, sources: Mapping[str, Path], out: Path) -> list[Check]:
        from edgeforge.backends.coreml import deliver

        return deliver.compile_decoder(build, sources, out)

    def bundle(self, build: Build, sources: Mapping[str, Path], bundle: Path) -> dict[str, Target]:
        from edgeforge.backends.coreml import deliver

        return deliver.bundle_decoder(build, sources, bundle)

    def compile_graph(self, build: Build, quantized: Path, vectors: Path, out: Path) -> list[Check]:
        raise _no_graphs()

    def bundle_graph(self, source: Part, compiled: Path, bundle: Path) -> dict[str, Target]:
        raise _no_graphs()

    def tools(self) -> list[Tool]:
        from edgeforge.backends.coreml import health

        return health.tools()

    def card(self, chip: Chip) -> Card:
        return limits.card(chip)

    def simulators(self) -> Mapping[str, Callable[[Target, Path], Executor]]:
        def simulated(target: Target, folder: Path) -> Executor:
            from edgeforge.backends.coreml.simulator import SimulatorExecutor

            _require_whole(folder)
            return SimulatorExecutor.of(target, folder)

        def first_party(target: Target, folder: Path) -> Executor:
            from edgeforge_runtime.errors import ExecutorError

            if why := systems.coreai():
                raise ExecutorError(f"this target needs Core AI: {why}; {systems.INSTALL_COREAI}")
            from edgeforge.backends.coreml.coreai.asset import CoreAiExecutor

            _require_whole(folder)  # a damaged asset would take this process with it
            return CoreAiExecutor((folder / target.graphs[0].parts[0].file).parent, "float16")

        return {SIMULATOR: simulated, COREAI: first_party}

    def caution(self, target: Target) -> str:
        if target.executor == COREAI:
            return "Apple's Core AI runtime on this CPU, in float16: slow, and no device"
        if target.executor == SIMULATOR:
            return "the package, executed here op by op: true to float16, slow, and no device"
        return ("runs on Apple's devices alone: device/verify_on_mac.py in the bundle tries it on a Mac"
                if target.executor == EXECUTOR else "")

    def abilities(self, chip: Chip) -> Abilities:
        from edgeforge.backends.coreml import health

        return health.abilities(chip)

    def proof(self, chip: Chip) -> Proof:
        from edgeforge.backends.coreml import health

        return health.proof(chip)

    def describe(self, paths: Sequence[Path]) -> list[dict[str, Any]]:
        from edgeforge.backends.coreml import describe

        return describe.describe(paths)

    def brief(self, facts: dict[str, Any]) -> dict[str, Any]:
        from edgeforge.backends.coreml import describe

        return describe.brief(facts)

    def trials(self, folder: Path) -> Sequence[Trial] | None:
        from edgeforge.backends.coreml import child

        if (why := child.not_bisected(folder)) is not None:
            raise why
        return None

    def trial(self, model: Path, feeds: Path | None, chip: Chip) -> Trial:
        raise UnsupportedError("graphs are not bisected for Core ML", "a build names an op that it cannot write")


def _require_whole(bundle: Path) -> None:
    """ExecutorError: what goes to the device is not what the build made; executed here, it would not show all of it."""
    from edgeforge_runtime.errors import ExecutorError

    from edgeforge import cache

    if (name := cache.damage(bundle, f"{DEVICE}/")) is not None:
        raise ExecutorError(f"{bundle / name} is missing or damaged: copy the bundle again, or build it again")


def _no_graphs() -> UnsupportedError:
    """`check` refuses such a recipe before."""
    return UnsupportedError("plain graphs are not built for Core ML", "language models are")


BACKEND = CoreMLBackend()
