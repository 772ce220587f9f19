"""calibrate: ranges of every activation on text, and Gram matrices for GPTQ: what later fits share."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgeforge.build import Build
from edgeforge.calibrate.observe import ObservingExecutor
from edgeforge.calibrate.statistics import Gram
from edgeforge.gates import Check
from edgeforge.graph import store
from edgeforge.quantize import roles
from edgeforge.stages import reading

RANGES, GRAMS = "ranges.json", "grams"


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes ranges.json {value: [smallest, largest]} and grams/ (empty unless rounding is gptq)."""
    source = sources["transform"]
    model = store.load(source)
    products = roles.products(model.graph) if build.recipe.quantize.rounding == "gptq" else {}
    grams = {name: Gram() for name in set(products.values())}

    def see(name: str, array: npt.NDArray[np.float32]) -> None:
        # A 1x1 convolution reads [1, channels, 1, tokens].
        grams[name].see(array[0, :, 0].T)

    with tempfile.TemporaryDirectory(dir=out) as scratch:
        observer = ObservingExecutor(model, grams, see, Path(scratch), build.threads)
        tokens = reading.read(build, source, observer)
    ranges = dict(sorted(observer.ranges.seen.items()))
    (out / RANGES).write_text(json.dumps(ranges, indent=0) + "\n", encoding="utf-8")
    save_grams(out / GRAMS, grams)
    return [Check("calibrate: values watched", len(ranges), "values"),
            Check("calibrate: Gram matrices", len(grams), "values"),
            Check("calibrate: tokens read", tokens, "tokens", 1)]


def save_grams(folder: Path, grams: dict[str, Gram]) -> None:
    """One float32 matrix a file, and index.json {value: file}."""
    folder.mkdir()
    index = {}
    for i, (name, gram) in enumerate(sorted(grams.items())):
        if gram.total is not None:
            index[name] = f"{i}.npy"
            np.save(folder / index[name], gram.total)
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")


def load_grams(folder: Path) -> dict[str, npt.NDArray[np.float32]]:
    """X'X by value name, memory-mapped."""
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    return {name: np.load(folder / file, mmap_mode="r") for name, file in index.items()}
