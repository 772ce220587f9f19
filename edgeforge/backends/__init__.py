"""Vendors. A stage asks for the backend that the chip names, and knows nothing more about it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Protocol, cast

from edgeforge_runtime.manifest import Part, Target

from edgeforge.build import Build
from edgeforge.gates import Check


class Backend(Protocol):
    """What a vendor's package gives to the pipeline; `edgeforge.backends.<name>.backend` holds one as BACKEND."""

    not_seen: tuple[str, ...]
    """what this machine cannot show about the compiled files; the report says it"""
    graph_not_seen: tuple[str, ...]
    """likewise, for a plain graph"""

    def compile(self, build: Build, split: Path, out: Path) -> list[Check]:
        """Compiles every part of a split artifact into out; placement and numbers come back as checks."""
        ...

    def bundle(self, build: Build, compiled: Path, split: Path, bundle: Path) -> dict[str, Target]:
        """Puts the compiled files and the vendor's own configs into a bundle; returns what can run them here."""
        ...

    def compile_graph(self, build: Build, quantized: Path, vectors: Path, out: Path) -> list[Check]:
        """Compiles a plain graph (a quantize artifact and calls of it) into out, measured like `compile`."""
        ...

    def bundle_graph(self, source: Part, compiled: Path, bundle: Path) -> dict[str, Target]:
        """Puts the compiled graph into a bundle; source is the same graph on the CPU."""
        ...


def backend(name: str) -> Backend:
    """The backend of that name."""
    module = importlib.import_module(f"edgeforge.backends.{name}.backend")
    return cast(Backend, module.BACKEND)
