"""The calibration text, read through a float model by the decode loop of the runtime."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def read(build: Build, source: Path, windows: Sequence[text.Window], executor: Executor) -> None:
    """Runs every window through executor, which holds source's model."""
    manifest = Manifest.load(source)
    with np.load(source / ROPE) as tables:
        session = Session(manifest, manifest.targets["cpu"], executor, tables["cos"], tables["sin"])
    with session:
        for i, window in enumerate(windows):
            build.say(f"window {i + 1} of {len(windows)}")
            for _ in session.score([int(t) for t in window]):
                pass


def describe(windows: Sequence[text.Window]) -> dict[str, Any]:
    """How much text, and the sha256 of its token ids (int64, little-endian, each window behind its length)."""
    digest = hashlib.sha256()
    for window in windows:
        digest.update(np.array([len(window), *window], "<i8").tobytes())
    return {"windows": len(windows), "tokens": sum(map(len, windows)), "sha256": digest.hexdigest()}
