"""A finished stage of a recipe, found in the cache."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from edgeforge_runtime.manifest import NAME

from edgeforge import cache, pipeline, source
from edgeforge.build import DATA, HASHES, Build
from edgeforge.calibrate.overlap import Hashes
from edgeforge.errors import EdgeForgeError, RecipeError, UnsupportedError
from edgeforge.recipe import OnnxModel, Recipe

_TEXT = "text"


@dataclass(frozen=True)
class Calibration:
    """What a model was calibrated on: the domain of each window, and hashes of its runs of words."""

    domains: tuple[str, ...] = ()
    hashes: tuple[Hashes, ...] = ()


@dataclass(frozen=True)
class Finished:
    """A stage's artifact, the build that it belongs to, and the text that it has seen (none before `transform`)."""

    build: Build
    stage: str
    folder: Path
    calibration: Calibration


def find(recipe: Recipe, stage: str, allow_pickle: bool = False) -> Finished:
    """The artifact of a stage, as this recipe would build it now.

    Raises:
        RecipeError: the recipe has no such stage.
        UnsupportedError: a plain graph's recipe.
        EdgeForgeError: the stage is not finished, leaves no model, or its files are damaged.
    """
    if isinstance(recipe.model, OnnxModel):
        raise UnsupportedError("model.onnx is a plain graph, and text says nothing about it",
                               "the report of its build holds what was measured on its samples")
    build = pipeline.start(recipe, source.open_source(recipe.model, allow_pickle))
    places = {s.name: (s, key, place) for s, key, place in pipeline.places(build)}
    if stage not in places:
        raise RecipeError(f"--stage {stage}: there is no such stage", f"one of {', '.join(places)}")
    folder = _sound(build, stage, *places[stage][1:])
    if not (folder / NAME).is_file():
        models = [n for n, (_, _, p) in places.items() if (p / NAME).is_file()]
        raise RecipeError(f"--stage {stage}: it leaves no model that can be run", f"one of {', '.join(models)}")
    seen = _TEXT in _ancestors(stage, {name: s.needs for name, (s, *_) in places.items()})
    text = _calibration(_sound(build, _TEXT, *places[_TEXT][1:])) if seen else Calibration()
    return Finished(build, stage, folder, text)


def _sound(build: Build, stage: str, key: str, place: Path) -> Path:
    command = f"edgeforge build {build.recipe.file}"
    if not cache.done(place, key, build.locks):
        raise EdgeForgeError(f"stage {stage} is not finished for this recipe", f"{command} makes it")
    if (name := cache.damage(place)) is not None:
        raise EdgeForgeError(f"{place / name} is damaged", f"{command} makes it again")
    return place


def _ancestors(stage: str, needs: dict[str, tuple[str, ...]]) -> set[str]:
    found = {*needs[stage]}
    return found.union(*(_ancestors(name, needs) for name in found))


def _calibration(folder: Path) -> Calibration:
    data = json.loads((folder / DATA).read_text(encoding="utf-8"))
    hashes = (np.frombuffer(bytes.fromhex(text), ">u8").astype(np.uint64) for text in data[HASHES])
    return Calibration(tuple(data["domains"]), tuple(hashes))
