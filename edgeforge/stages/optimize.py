"""optimize: the exporter's graph -> the form that the profile's compiler likes, still float."""

from __future__ import annotations

from pathlib import Path

from edgeforge_runtime.manifest import Manifest

from edgeforge import artifact
from edgeforge.build import Build
from edgeforge.gates import Check
from edgeforge.graph import store
from edgeforge.graph.optimize import optimize
from edgeforge.stages import adapt


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes the optimized model; every parameter keeps its name."""
    source = sources["adapt"]
    artifact.carry(source, out)
    Manifest.load(source).save(out)
    store.save(optimize(store.load(source), build.profile), out)
    return adapt.gate(build, out, source / artifact.REFERENCE, "optimize", "optimize_db")
