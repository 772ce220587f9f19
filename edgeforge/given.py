"""What a check finds in the data that a recipe names: calibration text, samples, another tool's encodings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgeforge import places
from edgeforge.calibrate import enough, sources
from edgeforge.calibrate.sections import Section
from edgeforge.checkpoint import Checkpoint
from edgeforge.errors import EdgeForgeError
from edgeforge.export.aimet_file import Glance, glances
from edgeforge.findings import Finding
from edgeforge.recipe import Recipe
from edgeforge.source import Source
from edgeforge.stages.plan import plan

if TYPE_CHECKING:
    from edgeforge.calibrate.samples import Samples


def text(recipe: Recipe, found: Source | None) -> Iterator[Finding]:
    """The calibration text: it is there, can be read, and holds the windows asked for."""
    path, key = recipe.calibrate.text, "calibrate.text"
    missing = list(places.file(recipe, key, path, "give the path of a UTF-8 text file")) if path is not None else []
    yield from missing
    if missing or (path is None and not isinstance(found, Checkpoint)):
        return
    try:
        sections = sources.builtin() if path is None else sources.read(path)
    except EdgeForgeError as error:
        yield Finding("recipe", recipe.where(key), error.message, error.hint)
        return
    if isinstance(found, Checkpoint) and any(stage.name == "text" for stage in plan(recipe)):
        yield from _enough(recipe, found, sections)


def _enough(recipe: Recipe, found: Checkpoint, sections: list[Section]) -> Iterator[Finding]:
    """Without tokenizer.json only the build can tell."""
    options, file = recipe.calibrate, found.folder / "tokenizer.json"
    length = min(options.tokens, recipe.target.context)
    if found.format == "gguf" or not file.is_file():
        return
    held = enough.most_windows(sections, options.text, options.windows, length, file)
    if held < options.windows:
        fewer = f"set calibrate.windows to {held} or less, or" if held else "set"
        yield Finding("recipe", recipe.where("calibrate.text" if options.text is not None else "calibrate.windows"),
                      f"{options.text or 'the default text'} holds {f'at most {held}' if held else 'no'} calibration "
                      f"window{'s' * (held != 1)} of {length} tokens, and {options.windows} are asked for",
                      f"{fewer} calibrate.tokens to less, or name a longer text (calibrate.text)")


def samples(recipe: Recipe, found: Samples) -> Iterator[Finding]:
    """What the gates of a plain graph measure on has to be new to it."""
    if found.fitted:
        said = ("one sample, which is both calibrated and measured on" if found.count == 1 else
                f"{found.fitted} of the samples that the gates measure on are calibrated on too")
        yield Finding("warning", recipe.where("model.calibration"), f"{said}: the figures will say how well the model "
                      "was fitted, not what it loses on other inputs", "give more samples, each another: the last "
                      "quarter is kept for the gates")


def foreign(recipe: Recipe) -> tuple[list[Finding], tuple[Glance, ...]]:
    """What stands against the recipe's file of encodings by itself, and what it holds."""
    path, key = recipe.quantize.encodings, "quantize.encodings"
    if path is None:
        return [], ()
    missing = list(places.file(recipe, key, path, "give the path of AIMET's .encodings"))
    try:
        found = () if missing else glances(path)
    except EdgeForgeError as error:
        return [Finding("recipe", recipe.where(key), error.message, error.hint)], ()
    narrow = next((g.name for g in found if g.bits == 4), None)
    if narrow is not None and not recipe.decoder and recipe.gates.quantize_db is None:
        missing.append(Finding("recipe", recipe.where(key), f"{narrow} has 4 bits, which cost a plain graph more than "
                               "they save", "give a weight 8 bits and any other value 16, or say in gates.quantize_db "
                               "what may be lost"))
    return missing, found
