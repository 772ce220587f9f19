"""calibrate: ranges of every activation on the recipe's samples, and Gram matrices for GPTQ."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from edgeforge_runtime.plain import PlainManifest, PlainSession

from edgeforge.build import DATA, Build
from edgeforge.calibrate import samples
from edgeforge.calibrate.observe import ObservingExecutor, Ranges
from edgeforge.calibrate.statistics import Gram
from edgeforge.gates import Check
from edgeforge.graph import store
from edgeforge.quantize import roles
from edgeforge.stages import calibrate


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes ranges.json {value: [smallest, largest]}, grams/ (empty unless rounding is gptq), data.json."""
    source = sources["optimize"]
    model = store.load(source)
    wanted = set(roles.products(model.graph).values()) if build.recipe.quantize.rounding == "gptq" else set()
    grams, ranges = {name: Gram() for name in sorted(wanted)}, Ranges()

    def see(name: str, array: npt.NDArray[np.float32]) -> None:
        grams[name].see(np.moveaxis(array, 1, -1))  # a convolution's channels are its second axis

    target = PlainManifest.load(source).targets["cpu"]
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        executor = ObservingExecutor(model, ranges, grams, see, Path(scratch), build.threads)
        with PlainSession(target, executor) as session:
            found = build.onnx.samples.calibration
            for index, feeds in enumerate(found):
                build.say(f"sample {index + 1} of {len(found)}")
                session.run(feeds)
    calibrate.save_grams(out, grams, {})
    calibrate.save_ranges(out, ranges)
    data = {"samples": len(found), "sha256": samples.digest(found)}
    (out / DATA).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return [Check("calibrate: values watched", len(ranges.seen), "values"),
            Check("calibrate: Gram matrices", len(grams), "values"),
            Check("calibrate: samples", len(found), "samples", 1)]
