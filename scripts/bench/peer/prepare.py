"""The float graph and the text that a build of ours would quantize with, by our own stages in a cache."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import yaml
from edgeforge_runtime.rope import Tables

from edgeforge import artifact, pipeline, recipe
from edgeforge.adapt.shape import Decoder
from edgeforge.evaluation import artifacts
from edgeforge.evaluation.artifacts import Finished
from edgeforge.stages import reading

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Prepared:
    """transform: the artifact to quantize. windows: calibration text, int64 [tokens] each."""

    transform: Finished
    decoder: Decoder
    tables: Tables
    windows: list[npt.NDArray[np.int64]]


class _EnoughError(Exception):
    """Everything before calibration is there."""


VARIANTS: dict[str, dict[str, object]] = {"balanced": {}, "best": {"quality": "best"}, "bare": {"transforms": []}}
"""what a recipe says of quantization beside its bits. bare: the optimized graph, as others would get it"""


def prepare(model: Path, cache: Path, variant: str = "balanced") -> Prepared:
    """Runs the stages up to `transform`, or finds them in cache."""
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / f"{variant}.yaml"
    path.write_text(yaml.safe_dump({
        "model": str(model.resolve()), "out": str(cache.resolve() / "bench"),
        "target": {"chip": "snapdragon-8-gen-3"},
        "quantize": {"weights": 4, "block": 64, **VARIANTS[variant]}}), encoding="utf-8")
    made = recipe.load(path)
    with contextlib.suppress(_EnoughError):
        pipeline.build(made, _until("calibrate"))
    found = artifacts.find(made, "transform")
    text = next(place for stage, _, place in pipeline.places(found.build) if stage.name == "text")
    return Prepared(found, artifact.load_decoder(found.folder), artifact.load_rope(found.folder),
                    reading.windows(text))


def _until(last: str) -> Callable[[pipeline.Event], None]:
    def tell(event: pipeline.Event) -> None:
        if event.stage == last:
            raise _EnoughError
        if event.kind != "step":
            print(f"{event.stage}: {event.kind} {event.text}", file=sys.stderr, flush=True)
    return tell
