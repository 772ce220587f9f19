"""export: float ONNX with AIMET encodings beside it, and test vectors of the QDQ model."""

from __future__ import annotations

from pathlib import Path

from edgeforge_runtime.plain import PlainSession

from edgeforge.build import Build
from edgeforge.export import record
from edgeforge.gates import Check
from edgeforge.stages.export import VECTORS, write_encodings

MOST = 3
"""samples among the vectors"""


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes model.onnx (float), model.encodings (AIMET 1.0.0), its 2.0.0 twin, and vectors/sample_0 ..."""
    entries = write_encodings(sources["quantize"], out)
    feeds = build.onnx.samples.evaluation[:MOST]
    with PlainSession.open(sources["quantize"], threads=build.threads, exact=True) as session:
        for index, one in enumerate(feeds):
            codes = {name: session.encode(t, one[name]) for name, t in session.inputs.items()}
            record.save(out / VECTORS / f"sample_{index}", record.Call(0, codes, session.run_codes(codes)))
    return [Check("export: encodings", entries, "entries"), Check("export: vectors", len(feeds), "calls", 1)]
