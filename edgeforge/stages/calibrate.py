"""calibrate: ranges of every activation on text, shared by all grids that are fitted later."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
from edgeforge_runtime.manifest import Manifest
from edgeforge_runtime.session import Session

from edgeforge import checkpoint
from edgeforge.artifact import ROPE
from edgeforge.calibrate import text
from edgeforge.calibrate.observe import ObservingExecutor
from edgeforge.gates import Check
from edgeforge.graph import store
from edgeforge.stages.build import Build

RANGES = "ranges.json"


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes ranges.json: {value: [smallest, largest]}."""
    options = build.recipe.calibrate
    tokenizer = checkpoint.load_tokenizer(build.checkpoint)
    length = min(options.tokens, build.context)
    windows = text.calibration_windows(tokenizer, length, options.windows, options.text)
    manifest = Manifest.load(sources["transform"])
    with np.load(sources["transform"] / ROPE) as tables:
        cos, sin = tables["cos"], tables["sin"]
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        observer = ObservingExecutor(store.load(sources["transform"]), Path(scratch), build.threads)
        session = Session(manifest, manifest.targets["cpu"], observer, cos, sin)
        for i, window in enumerate(windows):
            build.say(f"window {i + 1} of {len(windows)}")
            for _ in session.score([int(t) for t in window]):
                pass
        session.close()
    ranges = dict(sorted(observer.ranges.seen.items()))
    (out / RANGES).write_text(json.dumps(ranges, indent=0) + "\n", encoding="utf-8")
    return [Check("calibrate: values watched", len(ranges), "values"),
            Check("calibrate: tokens read", sum(map(len, windows)), "tokens", 1)]
