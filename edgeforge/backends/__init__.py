"""Vendors. A stage asks for the backend that the chip names, and knows nothing more about it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

from edgeforge_runtime.manifest import Target

from edgeforge.build import Build
from edgeforge.findings import Facts, Finding
from edgeforge.gates import Check


class Backend(Protocol):
    """What a vendor's package gives to the pipeline; `edgeforge.backends.<name>.backend` holds one as BACKEND."""

    not_seen: tuple[str, ...]
    """what this machine cannot show about the compiled files; the report says it"""

    def check(self, facts: Facts) -> Iterator[Finding]:
        """What stands against a build for this chip, before any work: formats, limits, missing tools."""
        ...

    def compile(self, build: Build, split: Path, out: Path) -> list[Check]:
        """Compiles every part of a split artifact into out; placement and numbers come back as checks."""
        ...

    def bundle(self, build: Build, compiled: Path, split: Path, bundle: Path) -> dict[str, Target]:
        """Puts the compiled files and the vendor's own configs into a bundle; returns what can run them here."""
        ...


def backend(name: str) -> Backend:
    """The backend of that name."""
    module = importlib.import_module(f"edgeforge.backends.{name}.backend")
    return cast(Backend, module.BACKEND)
