"""calibrate: ranges of every activation of the float model on text."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import onnx_ir as ir

from edgeforge.build import Build
from edgeforge.calibrate import histogram
from edgeforge.calibrate.observe import ObservingExecutor, Ranges
from edgeforge.gates import Check
from edgeforge.graph import store
from edgeforge.graph.untie import UntieEmbedding
from edgeforge.quantize import clip, float16
from edgeforge.stages import reading

RANGES, _PAST = "ranges.json", "past_"


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes ranges.json {value: [smallest, largest]}, and histograms.npz of what goes into the caches; where float16
    flows, of what products read."""
    source = sources["transform"]
    ranges, windows = Ranges(), reading.windows(sources["text"])
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        model = store.load(source)
        executor = ObservingExecutor(model, ranges, Path(scratch), build.threads, _counted(build, model))
        reading.read(build, source, windows, executor)
    save_ranges(out, ranges)
    histogram.save(out, executor.histograms)
    caches = {name: seen for name, seen in executor.histograms.items() if name.startswith(_PAST)}
    return [*([clip.outliers(caches)] if caches else []),
            Check("calibrate: values watched", len(ranges.seen), "values"),
            Check("calibrate: tokens read", sum(map(len, windows)), "tokens", 1)]


def _counted(build: Build, model: ir.Model) -> list[str]:
    if build.profile.flow == "codes":
        return [str(v.name) for v in model.graph.outputs if str(v.name).startswith(_PAST)]
    UntieEmbedding()(model)  # as the stage quantize will
    return float16.watched(model.graph)


def save_ranges(folder: Path, ranges: Ranges) -> None:
    text = json.dumps(dict(sorted(ranges.seen.items())), indent=0)
    (folder / RANGES).write_text(text + "\n", encoding="utf-8")


def load_ranges(folder: Path) -> dict[str, tuple[float, float]]:
    raw = json.loads((folder / RANGES).read_text(encoding="utf-8"))
    return {name: (low, high) for name, (low, high) in raw.items()}
