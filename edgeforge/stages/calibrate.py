"""calibrate: ranges of every activation on text, and Gram matrices for GPTQ: what later fits share."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgeforge.build import Build
from edgeforge.calibrate.observe import ObservingExecutor, Ranges, TappedExecutor
from edgeforge.calibrate.statistics import Gram
from edgeforge.calibrate.template import Window
from edgeforge.gates import Check
from edgeforge.graph import edit, store
from edgeforge.quantize import roles
from edgeforge.stages import reading

RANGES, GRAMS = "ranges.json", "grams"
_INDEX = "index.json"
_AT_ONCE = 1 << 30
"""bytes of Gram matrices that are summed in one reading of the text; more of them take more readings"""

Floats = npt.NDArray[np.float32]


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes ranges.json {value: [smallest, largest]}, grams/ (empty unless rounding is gptq)."""
    source = sources["transform"]
    wanted = _gram_values(store.load(source).graph) if build.recipe.quantize.rounding == "gptq" else {}
    index: dict[str, str] = {}
    ranges, windows = Ranges(), reading.windows(sources["text"])
    for number, names in enumerate(passes(wanted)):
        build.say(f"reading {number + 1}")
        grams = {name: Gram() for name in names}
        _read(build, source, windows, out, grams, None if number else ranges)
        save_grams(out, grams, index)
    save_ranges(out, ranges)
    return [Check("calibrate: values watched", len(ranges.seen), "values"),
            Check("calibrate: Gram matrices", len(index), "values",
                  1 if build.recipe.quantize.rounding == "gptq" else None),
            Check("calibrate: tokens read", sum(map(len, windows)), "tokens", 1)]


def save_ranges(folder: Path, ranges: Ranges) -> None:
    text = json.dumps(dict(sorted(ranges.seen.items())), indent=0)
    (folder / RANGES).write_text(text + "\n", encoding="utf-8")


def load_ranges(folder: Path) -> dict[str, tuple[float, float]]:
    raw = json.loads((folder / RANGES).read_text(encoding="utf-8"))
    return {name: (low, high) for name, (low, high) in raw.items()}


def save_grams(folder: Path, grams: Mapping[str, Gram], index: dict[str, str]) -> None:
    """Adds matrices to the folder's own; index says which are there, file by value name, and grows."""
    (folder / GRAMS).mkdir(exist_ok=True)
    for name, gram in grams.items():
        index[name] = f"{len(index)}.npy"
        np.save(folder / GRAMS / index[name], gram.matrix())
    (folder / GRAMS / _INDEX).write_text(json.dumps(index), encoding="utf-8")


def load_grams(folder: Path) -> dict[str, Floats]:
    """X'X by value name, memory-mapped."""
    index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
    return {name: np.load(folder / file, mmap_mode="r") for name, file in index.items()}


def _read(build: Build, source: Path, windows: Sequence[Window], out: Path, grams: dict[str, Gram],
          ranges: Ranges | None) -> None:
    """One reading of the text; fills grams, and ranges if there are any to fill."""
    def see(name: str, array: Floats) -> None:
        # A 1x1 convolution reads [1, channels, 1, tokens].
        grams[name].see(array[0, :, 0].T)

    model = store.load(source)
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        if ranges is None:
            executor = TappedExecutor(model, grams, see, Path(scratch), build.threads)
        else:
            executor = ObservingExecutor(model, ranges, grams, see, Path(scratch), build.threads)
        reading.read(build, source, windows, executor)


def _gram_values(graph: ir.Graph) -> dict[str, int]:
    """What 1x1 convolutions read, and how many channels it has."""
    wanted = set(roles.products(graph).values())
    shapes = {str(v.name): edit.known_dims(v) for v in roles.values(graph) if v.name in wanted}
    return {name: int(shape[1]) for name, shape in shapes.items() if len(shape) == 4}


def passes(channels: dict[str, int], at_once: int = _AT_ONCE) -> Iterable[list[str]]:
    """The values in groups whose matrices fit at once; at least one group, for the ranges."""
    group: list[str] = []
    size = 0
    for name, width in channels.items():
        cost = 4 * width**2
        if group and size + cost > at_once:
            yield group
            group, size = [], 0
        group.append(name)
        size += cost
    yield group
