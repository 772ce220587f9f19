"""calibrate: ranges of every activation on the recipe's samples."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from edgeforge_runtime.plain import PlainManifest, PlainSession

from edgeforge.build import DATA, Build
from edgeforge.calibrate import samples
from edgeforge.calibrate.observe import ObservingExecutor, Ranges
from edgeforge.gates import Check
from edgeforge.graph import store
from edgeforge.stages import calibrate


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes ranges.json {value: [smallest, largest]} and data.json."""
    source = sources["optimize"]
    ranges = Ranges()
    target = PlainManifest.load(source).targets["cpu"]
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        executor = ObservingExecutor(store.load(source), ranges, Path(scratch), build.threads)
        with PlainSession(target, executor) as session:
            found = build.onnx.samples.calibration
            for index, feeds in enumerate(found):
                build.say(f"sample {index + 1} of {len(found)}")
                session.run(feeds)
    calibrate.save_ranges(out, ranges)
    data = {"samples": len(found), "sha256": samples.digest(found)}
    (out / DATA).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return [Check("calibrate: values watched", len(ranges.seen), "values"),
            Check("calibrate: samples", len(found), "samples", 1)]
