"""Vendors. A stage asks for the backend that the chip names, and knows nothing more about it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from edgeforge.errors import RecipeError

if TYPE_CHECKING:  # every worker process passes through here on its way in
    from edgeforge_runtime.executors import Executor
    from edgeforge_runtime.manifest import Part, Target

    from edgeforge.backends.faults import Fault
    from edgeforge.backends.health import Abilities, Card, Proof, Tool
    from edgeforge.backends.trial import Trial
    from edgeforge.build import Build
    from edgeforge.findings import Facts, Finding
    from edgeforge.gates import Check
    from edgeforge.targets import Chip


class Backend(Protocol):
    """What a vendor's package gives to the pipeline; `edgeforge.backends.<name>.backend` holds one as BACKEND."""

    not_seen: tuple[str, ...]
    """what this machine cannot show about the compiled files; the report says it"""
    graph_not_seen: tuple[str, ...]
    """likewise, for a plain graph"""
    decisive: tuple[str, ...]
    """distributions whose versions decide what comes out of its compiler"""
    suffixes: tuple[str, ...]
    """of the compiled files, or folders, that `describe` can read"""
    alike: tuple[str, ...]
    """keys of `brief` in which the files of one bundle have to agree"""
    faults: tuple[Fault, ...]
    """what its tools and devices say when they fail"""

    def check(self, facts: Facts) -> Iterator[Finding]:
        """What stands against a build for this chip, before any work: formats, limits, missing tools."""
        ...

    def compile(self, build: Build, sources: Mapping[str, Path], out: Path) -> list[Check]:
        """Compiles what the stages before made (their artifacts by name) into out; placement and numbers come back
        as checks."""
        ...

    def bundle(self, build: Build, sources: Mapping[str, Path], bundle: Path) -> dict[str, Target]:
        """Puts the compiled files and the vendor's own configs into a bundle; returns what can run them here."""
        ...

    def trials(self, folder: Path) -> Sequence[Trial] | None:
        """Every graph of the failed job in a folder, each to be compiled alone; None: no job of this backend."""
        ...

    def trial(self, model: Path, feeds: Path | None, chip: Chip) -> Trial:
        """An ONNX file before this backend's compiler."""
        ...

    def describe(self, paths: Sequence[Path]) -> list[dict[str, Any]]:
        """What compiled files hold, in order; each with "kind", "path" and "bytes". EdgeForgeError: unreadable."""
        ...

    def brief(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Such a description as one row of a table."""
        ...

    def tools(self) -> list[Tool]:
        """The vendor's tools on this machine."""
        ...

    def card(self, chip: Chip) -> Card:
        """What the chip is and takes."""
        ...

    def simulators(self) -> Mapping[str, Callable[[Target, Path], Executor]]:
        """Executors for the runtime that stand for a device, by the name that a bundle's target gives."""
        ...

    def caution(self, target: Target) -> str:
        """What a person should know who runs this target here; empty for another backend's, or when nothing."""
        ...

    def abilities(self, chip: Chip) -> Abilities:
        """What can be done for the chip on this machine."""
        ...

    def proof(self, chip: Chip) -> Proof:
        """Compiles something small for the chip, in seconds."""
        ...

    def compile_graph(self, build: Build, quantized: Path, vectors: Path, out: Path) -> list[Check]:
        """Compiles a plain graph (a quantize artifact and calls of it) into out, measured like `compile`."""
        ...

    def bundle_graph(self, source: Part, compiled: Path, bundle: Path) -> dict[str, Target]:
        """Puts the compiled graph into a bundle; source is the same graph on the CPU."""
        ...


def names() -> list[str]:
    """Every backend there is."""
    here = Path(__file__).parent
    return sorted(p.parent.name for p in here.glob("*/backend.py"))


def reader(path: Path) -> Backend | None:
    """The backend that can describe this file, by its suffix."""
    found = (backend(name) for name in names())
    return next((b for b in found if path.suffix in b.suffixes), None)


def caution(target: Target) -> str:
    """What the backend whose target this is has to say to a person who runs it here."""
    return next(filter(None, (backend(name).caution(target) for name in names())), "")


def runnable(target: Target) -> bool:
    """Does an executor here run this target? The simulators of all backends are there for the runtime from now on."""
    from edgeforge_runtime.executors import known, register

    for name, opener in (pair for one in names() for pair in backend(one).simulators().items()):
        register(name, opener)
    return target.executor in known()


def require_runnable(on: str, target: Target) -> None:
    """RecipeError: no executor here runs this target, which was asked for by --on; see runnable."""
    if not runnable(target):
        raise RecipeError(f"--on {on}: it {caution(target) or f'wants an executor {target.executor!r}'}",
                          "the bundle's CPU model runs here: --on cpu")


def backend(name: str) -> Backend:
    """The backend of that name."""
    module = importlib.import_module(f"edgeforge.backends.{name}.backend")
    return cast(Backend, module.BACKEND)
