"""The recipe: the vocabulary of the tool. Unknown keys are refused, defaults are visible here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, PrivateAttr, Tag, ValidationError, model_validator

from edgeforge import checkpoint, document, scope
from edgeforge.complaints import complaints
from edgeforge.document import Document
from edgeforge.errors import RecipeError
from edgeforge.gates import of_bits
from edgeforge.sections import Apple, Calibrate, Compile, Gates, Location, Quantize, Section, Split, Target

_FOUR_BITS: dict[str, float | None] = {
    "quantize_db": None, "quantize_centred_db": 8, "quantize_kl": 0.3, "quantize_ppl": 1.25, "quantize_flips": 0.35}
_MORE_BITS: dict[str, float | None] = {
    "quantize_db": 30, "quantize_centred_db": None, "quantize_kl": 0.02, "quantize_ppl": 1.02, "quantize_flips": None}


class OnnxModel(Section):
    """Any ONNX graph, and the inputs that it is calibrated and measured on."""

    onnx: Location
    """A float graph of fixed shapes, opset 17 to 24."""
    calibration: Location
    """An .npz with one array for each graph input, [samples, *the input's shape]."""


class Recipe(Section):
    """One build. Paths are relative to the recipe's own folder."""

    model: Annotated[Annotated[Location, Tag("Path")] | Annotated[OnnxModel, Tag("OnnxModel")],
                     Discriminator(lambda raw: "OnnxModel" if isinstance(raw, dict | OnnxModel) else "Path")]
    """A HuggingFace folder, a .gguf file, a hub id (org/name, org/name@revision), or an ONNX graph."""
    out: Location
    """The bundle's folder; a rebuild replaces it. The cache lies beside it, in .edgeforge."""
    target: Target
    calibrate: Calibrate = Calibrate()
    quantize: Quantize = Quantize()
    split: Split = Split()
    apple: Apple = Apple()
    compile: Compile = Compile()
    gates: Gates = Gates()

    _document: Document = PrivateAttr(default_factory=Document)

    @model_validator(mode="after")
    def _kl_of_tokens(self) -> Recipe:
        wanted = self.quantize.budget
        if isinstance(self.model, OnnxModel) and wanted is not None and wanted.kl is not None:
            raise ValueError("quantize.budget.kl: a plain graph has no tokens to measure KL on; set bits_per_weight "
                             "instead")
        return self

    @model_validator(mode="after")
    def _four_bits_of_a_graph(self) -> Recipe:
        key = self.quantize.giver(4)
        if isinstance(self.model, OnnxModel) and key not in ("", "head") and self.gates.quantize_db is None:
            raise ValueError(f"quantize.{key}: 4 bits cost a plain graph, a vision encoder above "
                             "all, more than they save; take 8, or say in gates.quantize_db what may be lost")
        return self

    @property
    def decoder(self) -> bool:
        """Is it a language model that is built, and no plain graph?"""
        return not isinstance(self.model, OnnxModel)

    @property
    def silent(self) -> dict[tuple[str, str], str]:
        """The keys (section, key) that say nothing about this model on its chip, and why."""
        return scope.silent(self.target.chip, self.decoder)

    @property
    def file(self) -> Path:
        """Where it was read from, as that was given."""
        return self._document.path

    @property
    def limits(self) -> dict[str, float | None]:
        """Each gate's threshold by its key (see gates.of_bits): what is set, else what suits weights of 4 bits, or of
        more; None: no limit."""
        said = self.gates.model_dump(exclude={"windows"})
        four = {of_bits(key, True): said[key] if said[key] is not None else usual for key, usual in _FOUR_BITS.items()}
        return {key: _MORE_BITS.get(key) if value is None else value for key, value in said.items()} | four

    def where(self, key: str) -> str:
        """What to call a key ("target.context") in a message: with file and line, when it was read from a file."""
        if not self._document.data:
            return key
        written = tuple(key.split("."))
        default = "" if written in self._document.lines else ", the default"
        return f"{self._document.where(written)}: {key}{default}"


def schema() -> dict[str, Any]:
    """JSON schema (2020-12) of a recipe file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Recipe.model_json_schema()}


def load(path: Path) -> Recipe:
    """Reads a recipe file; its paths come back absolute.

    Raises:
        RecipeError: not there, not YAML, an unknown key (with the nearest known one) or wrong values, all at once.
    """
    read = document.load(path)
    try:
        recipe = Recipe.model_validate_json(json.dumps(scope.with_defaults(read.data)), strict=True)
    except ValidationError as error:
        lines = complaints(error, Recipe, read)
        raise RecipeError("\n  ".join([f"recipe {path}:", *lines]) if len(lines) > 1 else lines[0]) from None
    scope.refuse(recipe.silent, read)
    base, text, foreign = path.resolve().parent, recipe.calibrate.text, recipe.quantize.encodings
    text = text and _absolute(base, text, read, "calibrate.text")
    foreign = foreign and _absolute(base, foreign, read, "quantize.encodings")
    found = recipe.model_copy(update={
        "model": _placed(base, recipe.model, read),
        "out": _absolute(base, recipe.out, read, "out").resolve(),
        "calibrate": recipe.calibrate.model_copy(update={"text": text}),
        "quantize": recipe.quantize.model_copy(update={"encodings": foreign})})
    found._document = read
    return found


def _absolute(base: Path, path: Path, read: Document, key: str) -> Path:
    """path as seen from base; RecipeError when the system cannot even look for it (too long, a loop, no such user)."""
    try:
        found = base / path.expanduser()
        short = Path(os.path.normpath(found))
        found.exists()
        return short if short.resolve() == found.resolve() else found  # behind a link, `..` leads elsewhere
    except (OSError, RuntimeError) as error:
        raise RecipeError(f"{read.where(tuple(key.split('.')))}: {key}: {getattr(error, 'strerror', None) or error}",
                          "give a path that can be looked up") from error


def _placed(base: Path, model: Path | OnnxModel, read: Document) -> Path | OnnxModel:
    if isinstance(model, Path):
        return checkpoint.locate(model, _absolute(base, model, read, "model"))
    return OnnxModel(onnx=_absolute(base, model.onnx, read, "model.onnx"),
                     calibration=_absolute(base, model.calibration, read, "model.calibration"))
