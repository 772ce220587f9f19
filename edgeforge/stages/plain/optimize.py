"""optimize: any ONNX file -> the form that the target's compiler likes, still float, gated against the file."""

from __future__ import annotations

from pathlib import Path

from edgeforge.build import Build
from edgeforge.gates import Check
from edgeforge.graph import enter, store
from edgeforge.graph.optimize_plain import optimize
from edgeforge.stages.plain import measure, original


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes the optimized model, its manifest, and the answers of the original that later gates use."""
    build.say("answers of the original graph")
    apart = original.save_reference(build, out)
    model = optimize(enter.read(build.onnx.path), build.profile)
    store.save(model, out)
    measure.save_manifest(build, model.graph, out)
    return [apart, *measure.gate(build, out, out, "optimize", "optimize_db", fitted=False)]
