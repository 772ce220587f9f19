"""The calibration text, read through a float model by the decode loop of the runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from edgeforge_runtime.executors.base import Executor
from edgeforge_runtime.manifest import Manifest
from edgeforge_runtime.session import Session

from edgeforge import checkpoint
from edgeforge.artifact import ROPE
from edgeforge.build import Build
from edgeforge.calibrate import text


def windows(build: Build) -> list[text.Window]:
    """The recipe's calibration windows."""
    options = build.recipe.calibrate
    tokenizer = checkpoint.load_tokenizer(build.checkpoint)
    length = min(options.tokens, build.context)
    return text.calibration_windows(tokenizer, length, options.windows, options.text)


def read(build: Build, source: Path, executor: Executor) -> int:
    """Runs every window through executor, which holds source's model; returns the number of tokens."""
    manifest = Manifest.load(source)
    with np.load(source / ROPE) as tables:
        session = Session(manifest, manifest.targets["cpu"], executor, tables["cos"], tables["sin"])
    found = windows(build)
    with session:
        for i, window in enumerate(found):
            build.say(f"window {i + 1} of {len(found)}")
            for _ in session.score([int(t) for t in window]):
                pass
    return sum(map(len, found))
