"""compile: the graph through the vendor's compiler, and what came out read back and run."""

from __future__ import annotations

from pathlib import Path

from edgeforge.backends import backend
from edgeforge.build import Build
from edgeforge.gates import Check
from edgeforge.stages.export import VECTORS


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes what the chip's backend makes of the quantized model."""
    vendor = backend(build.chip.backend)
    return vendor.compile_graph(build, sources["quantize"], sources["export"] / VECTORS, out)
