"""calibrate: ranges of every activation of the float model on text."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from edgeforge.build import Build
from edgeforge.calibrate import histogram
from edgeforge.calibrate.observe import ObservingExecutor, Ranges
from edgeforge.gates import Check
from edgeforge.graph import store
from edgeforge.quantize import clip
from edgeforge.stages import reading

RANGES = "ranges.json"


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes ranges.json {value: [smallest, largest]}, and histograms.npz of what goes into the caches."""
    source = sources["transform"]
    ranges, windows = Ranges(), reading.windows(sources["text"])
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        executor = ObservingExecutor(store.load(source), ranges, Path(scratch), build.threads)
        reading.read(build, source, windows, executor)
    save_ranges(out, ranges)
    histogram.save(out, executor.histograms)
    return [clip.outliers(executor.histograms),
            Check("calibrate: values watched", len(ranges.seen), "values"),
            Check("calibrate: tokens read", sum(map(len, windows)), "tokens", 1)]


def save_ranges(folder: Path, ranges: Ranges) -> None:
    text = json.dumps(dict(sorted(ranges.seen.items())), indent=0)
    (folder / RANGES).write_text(text + "\n", encoding="utf-8")


def load_ranges(folder: Path) -> dict[str, tuple[float, float]]:
    raw = json.loads((folder / RANGES).read_text(encoding="utf-8"))
    return {name: (low, high) for name, (low, high) in raw.items()}
