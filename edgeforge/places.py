"""The files and folders that a recipe names: there, and of the right kind, before anything is read or made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from edgeforge import cache
from edgeforge.build import STAMP
from edgeforge.errors import EdgeForgeError
from edgeforge.findings import Finding
from edgeforge.recipe import OnnxModel, Recipe


def model(recipe: Recipe) -> Iterator[Finding]:
    """What the build starts from. A hub's id is no path: whether it is there, only the hub knows."""
    found = recipe.model
    if isinstance(found, OnnxModel):
        yield from file(recipe, "model.onnx", found.onnx, "give the path of the .onnx file")
        yield from file(recipe, "model.calibration", found.calibration,
                        "write it with numpy.savez(path, input_name=array, ...)")
    elif found.is_absolute() and not found.exists():
        yield Finding("recipe", recipe.where("model"), f"there is no {found}",
                      "check the path (it is relative to the recipe's folder), or give a hub id: org/name")


def file(recipe: Recipe, key: str, path: Path, change: str) -> Iterator[Finding]:
    """A file that has to be there."""
    if not path.is_file():
        lack = f"{path} is a folder, not a file" if path.is_dir() else (
            f"{path} is not a file" if path.exists() else f"there is no file {path}")
        yield Finding("recipe", recipe.where(key), lack, change)


def out(recipe: Recipe) -> Iterator[Finding]:
    """Where the bundle goes: a folder can be made there, and nothing of anybody's is spoilt by it."""
    where, place = recipe.where("out"), recipe.out
    above = next(p for p in place.parents if p.exists())
    source = None if isinstance(recipe.model, OnnxModel) or not recipe.model.is_dir() else recipe.model.resolve()
    made = next((p for p in place.parents if (p / STAMP).is_file()), None)
    if not above.is_dir():
        yield Finding("recipe", where, f"{above} is a file: {place} cannot lie in it", "choose another `out`")
    elif not os.access(above, os.W_OK | os.X_OK):
        yield Finding("recipe", where, f"{above} is not yours to write in", "choose another `out`")
    elif made is not None:
        yield Finding("recipe", where, f"{place} lies in {made}, which a build made: it would be no whole bundle "
                      "any more", "choose an `out` beside it")
    elif source in place.parents:
        yield Finding("recipe", where, f"{place} lies in the model's own folder", "choose an `out` beside it")
    else:
        try:
            cache.guard(place)
        except EdgeForgeError as error:
            yield Finding("recipe", where, error.message, error.hint)
