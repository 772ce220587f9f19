"""export: what other tools take: float ONNX with AIMET encodings beside it, and test vectors of the QDQ model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from edgeforge_runtime.executors import open_executor
from edgeforge_runtime.manifest import Manifest
from edgeforge_runtime.session import Session

from edgeforge import __version__, artifact
from edgeforge.build import Build
from edgeforge.encodings import FILE, Table
from edgeforge.evaluation import logits
from edgeforge.export import aimet, record
from edgeforge.gates import Check
from edgeforge.graph import store
from edgeforge.quantize.weights import palette_file
from edgeforge.stages import adapt
from edgeforge.stages.quantize import FLOAT

ENCODINGS, ENCODINGS_2, VECTORS = "model.encodings", "model.2.0.0.encodings", "vectors"
STEPS = 3
"""decode calls among the vectors"""


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes model.onnx (float), model.encodings (AIMET 1.0.0), its 2.0.0 twin, vectors/{ar128,ar1_0,ar1_1,...}."""
    entries = write_encodings(sources["quantize"], out)
    calls = _vectors(build, sources)
    for index, call in enumerate(calls):
        record.save(out / VECTORS / label(call.ar, index - 1), call)
    tables = len(palette_file.beside(sources["quantize"]))
    note = f"{tables} weights are entries of tables, which AIMET's encodings do not know" if tables else ""
    return [Check("export: encodings", entries, "entries", note=note), Check("export: vectors", len(calls), "calls", 1)]


def write_encodings(quantized: Path, out: Path) -> int:
    """The float model of a quantize artifact and its table in AIMET's form; returns the number of entries."""
    artifact.copy_model(quantized / FLOAT, out)
    table = Table.load(quantized / FILE)
    parameters = [str(v.name) for v in store.load(out).graph.initializers.values()]
    aimet.write(out / ENCODINGS, table, parameters, f"edgeforge {__version__}")
    aimet.write(out / ENCODINGS_2, table, parameters, f"edgeforge {__version__}", "2.0.0")
    return len(table)


def label(ar: int, step: int) -> str:
    """The folder of one recorded call."""
    return f"ar{ar}" if ar > 1 else f"ar1_{step}"


def _vectors(build: Build, sources: dict[str, Path]) -> list[record.Call]:
    folder = sources["quantize"]
    manifest = Manifest.load(folder)
    target = manifest.targets["cpu"]
    recorder = record.Recorder(open_executor(target, folder, exact=True, threads=build.threads))
    ids = np.load(sources["adapt"] / adapt.REFERENCE / logits.IDS)[0]
    with Session(manifest, target, recorder, artifact.load_rope(folder)) as session:
        return record.record(session, recorder, ids, build.recipe.target.prefill, STEPS)
