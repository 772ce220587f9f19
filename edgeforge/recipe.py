"""The recipe: the vocabulary of the tool. Unknown keys are refused, defaults are visible here."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from edgeforge import targets
from edgeforge.errors import RecipeError

_STEPS, _LEAST_CONTEXT = 3, 32


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Target(_Section):
    """Where the bundle runs, and the graph widths that it is compiled for."""

    chip: str
    context: int = Field(1024, ge=2, le=32768)
    """CL: most tokens that prompt and answer hold together"""
    prefill: int = Field(128, ge=2, le=2048)
    """AR of the prompt graph; the decode graph is AR-1"""

    @field_validator("chip")
    @classmethod
    def _known_chip(cls, name: str) -> str:
        try:
            return targets.chip(name).name
        except RecipeError as error:
            raise ValueError(f"{error.message} ({error.hint})") from None

    @model_validator(mode="after")
    def _prefill_fits(self) -> Target:
        least = max(2 * self.prefill + _STEPS, _LEAST_CONTEXT)
        if self.context < least:
            raise ValueError(f"context {self.context} is too short: the gates read two chunks of prefill "
                             f"{self.prefill} and a few single steps, at least {least} tokens")
        return self


class Calibrate(_Section):
    """The text that statistics come from: `windows` of `tokens` tokens, of a file or the built-in mix."""

    text: Path | None = None
    windows: int = Field(default=16, ge=1, le=4096)
    tokens: int = Field(default=512, ge=8, le=32768)


class Quantize(_Section):
    """Bits by role, how weights are rounded, and the exact rewrites that come first.

    rounding: `gptq` lets later channels mend the errors of earlier ones (quantize/gptq.py).
    transforms: `rotate` spreads the residual stream's outliers, `equalize_kv` lets every cache channel fill
    its tensor's grid, `split_outliers` writes an MLP's massive channel as several small ones. They are
    applied in this order, whatever the order here.
    """

    weights: Literal[4, 8, 16] = 8
    activations: Literal[16] = 16
    kv: Literal[8] = 8
    embedding: Literal[8, 16] = 16
    rounding: Literal["gptq", "nearest"] = "gptq"
    transforms: tuple[Literal["rotate", "equalize_kv", "split_outliers"], ...] = (
        "rotate", "equalize_kv", "split_outliers")


class Split(_Section):
    """How the graph is cut into parts."""

    part_bytes: int = Field(1 << 30, ge=1 << 10)
    """most weight bytes in one decoder part"""


class Compile(_Section):
    """Limits for the vendor's compiler."""

    timeout_s: float = Field(1800, gt=0)


class Gates(_Section):
    """What a stage may lose before the build stops. dB of logits, nats per token, ratios."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    windows: int = Field(2, ge=1)
    """evaluation windows of `context` tokens each, disjoint from calibration text"""
    adapt_db: float = 60
    optimize_db: float = 55
    quantize_db: float = 30
    quantize_kl: float = 0.02
    quantize_ppl: float = 1.02
    sha_db: float = 60
    split_db: float = 60
    wide_db: float = 15
    """prefill of a deep part against another arithmetic: the same codes but for roundings that grow with depth"""
    emulator_db: float = 40
    shared_bytes: float = 1.05


class OnnxModel(_Section):
    """Any ONNX graph, and the inputs that it is calibrated and measured on.

    calibration: an .npz with one array for each graph input, [samples, *the input's shape].
    """

    onnx: Path
    calibration: Path


_TAGS = "folder:", "graph:"
"""what pydantic puts into an error's path to say which kind of model it took; no key of ours"""
_DECODERS_ONLY = {
    "target": ("context", "prefill"), "calibrate": ("text", "windows", "tokens"),
    "quantize": ("kv", "embedding", "transforms"), "split": ("part_bytes",),
    "gates": ("windows", "adapt_db", "quantize_kl", "quantize_ppl", "sha_db", "split_db", "wide_db", "shared_bytes")}
"""keys by section that say nothing about a graph without tokens and cache"""


class Recipe(_Section):
    """One build. Paths are relative to the recipe's own folder."""

    model: Annotated[Annotated[Path, Tag(_TAGS[0])] | Annotated[OnnxModel, Tag(_TAGS[1])],
                     Discriminator(lambda raw: _TAGS[isinstance(raw, dict | OnnxModel)])]
    out: Path
    target: Target
    calibrate: Calibrate = Calibrate()
    quantize: Quantize = Quantize()
    split: Split = Split()
    compile: Compile = Compile()
    gates: Gates = Gates()

    @model_validator(mode="after")
    def _fits_a_graph(self) -> Recipe:
        if isinstance(self.model, OnnxModel):
            given = [f"{section}.{key}" for section, keys in _DECODERS_ONLY.items()
                     for key in keys if key in getattr(self, section).model_fields_set]
            if given:
                raise ValueError(f"{', '.join(given)}: only for language models, and model.onnx is a plain graph; "
                                 "leave it out")
        return self


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice: YAML would drop the first one without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if twice := [k for i, k in enumerate(keys) if k in keys[:i]]:
            raise yaml.MarkedYAMLError(problem=f"key {twice[0]!r} is given twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


def load(path: Path) -> Recipe:
    """Reads a recipe file.

    Raises:
        RecipeError: not there, not YAML, an unknown key (with the nearest known one) or a wrong value.
    """
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise RecipeError(f"recipe {path}: {error.strerror}", "give the path of a recipe file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe {path} is not YAML: {error}") from error
    if not isinstance(raw, dict):
        raise RecipeError(f"recipe {path} holds a {type(raw).__name__}, not keys and values")
    try:
        recipe = Recipe.model_validate(raw)
    except ValidationError as error:
        raise RecipeError(f"recipe {path}:\n" + "\n".join(_complaints(error))) from None
    base = path.resolve().parent
    text = recipe.calibrate.text
    return recipe.model_copy(update={
        "model": _placed(recipe.model, base), "out": (base / recipe.out.expanduser()).resolve(),
        "calibrate": recipe.calibrate.model_copy(update={"text": base / text.expanduser() if text else None})})


def _placed(model: Path | OnnxModel, base: Path) -> Path | OnnxModel:
    if isinstance(model, Path):
        return base / model.expanduser()
    return OnnxModel(onnx=base / model.onnx.expanduser(), calibration=base / model.calibration.expanduser())


def _complaints(error: ValidationError) -> Iterator[str]:
    for item in error.errors():
        loc = tuple(p for p in item["loc"] if p not in _TAGS)
        where = ".".join(map(str, loc)) or "recipe"
        if item["type"] == "extra_forbidden":
            near = difflib.get_close_matches(str(loc[-1]), _keys(loc[:-1]), 1)
            yield f"  {where}: unknown key" + (f"; did you mean {near[0]!r}?" if near else "")
        elif item["type"] == "missing":
            yield f"  {where}: missing"
        elif not loc:
            yield f"  {item['msg']}"
        else:
            yield f"  {where}: {item['msg']} (got {item['input']!r})"


def _keys(path: tuple[int | str, ...]) -> list[str]:
    model: Any = Recipe
    for key in path:
        model = OnnxModel if key == "model" else model.model_fields[str(key)].annotation
    return list(model.model_fields)
