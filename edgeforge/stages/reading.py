"""The calibration text, read through a float model by the decode loop of the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from edgeforge_runtime.executors.base import Executor
from edgeforge_runtime.manifest import Manifest
from edgeforge_runtime.session import Session

from edgeforge import artifact
from edgeforge.build import Build
from edgeforge.calibrate.template import Window

WINDOWS = "windows.npz"


def windows(folder: Path) -> list[Window]:
    """What the text stage wrote into folder."""
    with np.load(folder / WINDOWS) as arrays:
        return list(arrays["ids"])


def read(build: Build, source: Path, windows: Sequence[Window], executor: Executor) -> None:
    """Runs every window through executor, which holds source's model.

    Windows: one or more, all of one length. What is left behind whole chunks is read by a width of its own: a chunk
    that is filled up has rows that hold no token, and whoever looks on would take what they hold for something that a
    text can do.
    """
    manifest = Manifest.load(source)
    widths = {build.widths[0], len(windows[0]) % build.widths[0]} - {0}
    target = artifact.whole(artifact.load_decoder(source), sorted(widths, reverse=True), build.context)
    with Session(manifest, target, executor, artifact.load_rope(source)) as session:
        for i, window in enumerate(windows):
            build.say(f"window {i + 1} of {len(windows)}")
            for _ in session.score([int(t) for t in window]):
                pass
