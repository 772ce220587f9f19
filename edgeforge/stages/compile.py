"""compile: what was made through the vendor's compiler, and what came out read back and run."""

from __future__ import annotations

from pathlib import Path

from edgeforge.backends import backend
from edgeforge.build import Build
from edgeforge.gates import Check


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes what the chip's backend makes of the earlier stages' artifacts."""
    return backend(build.chip.backend).compile(build, sources, out)
