"""The stages in order: what each reads, and what its result depends on."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeforge import targets
from edgeforge.build import Build
from edgeforge.gates import Check
from edgeforge.recipe import OnnxModel, Recipe

_TORCH = "torch", "transformers", "tokenizers", "safetensors", "jinja2", "gguf"
_ONNX, _ORT = ("onnx", "onnx-ir", "onnxsim", "ml-dtypes", "protobuf"), ("onnxruntime", "numpy")


@dataclass(frozen=True)
class Stage:
    """One step. needs: stages whose artifacts it reads. keys: the recipe's part that decides what it makes; gates do
    not, but for the report in a bundle. tools: distributions whose change reruns it. vendor: it calls the backend that
    the chip names, whose own tools count too. folder: where its module lies, under stages/. opens: the module that
    reads what the build starts from. whence: it writes down where that lay. remedy: what to try when it lost too much.
    """

    name: str
    needs: tuple[str, ...]
    keys: Callable[[Recipe], Any]
    tools: tuple[str, ...]
    vendor: bool = False
    folder: str = ""
    opens: str = ""
    whence: bool = False
    remedy: str = ""

    @property
    def module(self) -> str:
        """The module whose `run` does the work."""
        return ".".join(filter(None, ("edgeforge.stages", self.folder, self.name)))

    def run(self, build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
        """Calls its module's run; the imports are paid for only now."""
        checks: list[Check] = importlib.import_module(self.module).run(build, sources, out)
        return checks


def plan(recipe: Recipe) -> tuple[Stage, ...]:
    """The stages that recipe asks for, in order."""
    options = recipe.quantize
    if isinstance(recipe.model, OnnxModel):
        return GRAPH_STAGES
    if targets.chip(recipe.target.chip).profile.flow == "codes":
        return STAGES
    return _float16(text=options.rounded or bool(options.transforms), ranges=options.activations < _FLOAT16)


def _scaled_for(recipe: Recipe) -> Any:
    """The grids of weights that channels are scaled for; without that transform no other depends on them."""
    options = recipe.quantize
    return [options.weights, options.block, options.eight_bits] if "scale_channels" in options.transforms else None


_FLOAT16 = 16
_ADAPT = Stage("adapt", (), lambda r: [r.target.context, r.target.prefill, r.gates.windows],
               (*_TORCH, *_ONNX, *_ORT, "onnxscript"), opens="edgeforge.checkpoint")
_OPTIMIZE = Stage("optimize", ("adapt",), lambda r: [], (*_ONNX, *_ORT))
_TEXT = Stage("text", (), lambda r: [r.target.context, r.gates.windows, r.calibrate], (*_TORCH, *_ONNX, *_ORT),
              opens="edgeforge.checkpoint")
_TRANSFORM = Stage("transform", ("adapt", "optimize", "text"),
                   lambda r: [r.quantize.transforms, r.quantize.embedding, r.quantize.kv, _scaled_for(r)],
                   ("torch", *_ONNX, *_ORT),
                   remedy="if that was not lost before, leave out one of quantize.transforms after the other")
_CALIBRATE = Stage("calibrate", ("text", "transform"), lambda r: [], (*_ONNX, *_ORT))
_LOSE_LESS = ("`edgeforge eval RECIPE --stage quantize` shows more; quantize.quality best, more calibrate.windows, a "
              "smaller quantize.block and more bits lose less")
_QUANTIZE = Stage("quantize", ("adapt", "text", "transform", "calibrate"), lambda r: [r.quantize],
                  ("torch", *_ONNX, *_ORT), remedy=_LOSE_LESS)
_EXPORT = Stage("export", ("adapt", "transform", "quantize"), lambda r: [], (*_ONNX, *_ORT))

STAGES = (
    _ADAPT, _OPTIMIZE, _TEXT, _TRANSFORM, _CALIBRATE, _QUANTIZE, _EXPORT,
    Stage("split", ("transform", "quantize", "export"),
          lambda r: [r.split], (*_ONNX, *_ORT)),
    Stage("compile", ("split",), lambda r: [r.target], (*_ONNX, *_ORT), vendor=True),
    Stage("bundle", ("adapt", "optimize", "text", "transform", "calibrate", "quantize", "export", "split", "compile"),
          lambda r: [r.target, r.limits], (*_ONNX, *_ORT), vendor=True, whence=True),
)
"""from a language model's checkpoint to what computes on codes"""


def _float16(text: bool, ranges: bool) -> tuple[Stage, ...]:
    """From a language model's checkpoint to what computes in float16: one graph, whole.

    Args:
        text: something is fitted to text. ranges: products read codes, whose grids hold what calibration sees.
    """
    before = (_ADAPT, _OPTIMIZE, *((_TEXT,) if text else ()), _TRANSFORM, *((_CALIBRATE,) if ranges else ()), _QUANTIZE,
              _EXPORT,
              Stage("compile", ("adapt", "quantize", "export"), lambda r: [r.target, r.apple], (*_ONNX, *_ORT),
                    vendor=True))
    last = Stage("bundle", tuple(s.name for s in before), lambda r: [r.target, r.apple, r.limits], (*_ONNX, *_ORT),
                 vendor=True, whence=True)
    there = {s.name for s in before}
    return tuple(dataclasses.replace(s, needs=tuple(n for n in s.needs if n in there)) for s in (*before, last))


GRAPH_STAGES = (
    Stage("optimize", (), lambda r: [], (*_ONNX, *_ORT, "onnxscript"), folder="plain",
          opens="edgeforge.onnx_source"),
    Stage("calibrate", ("optimize",), lambda r: [], (*_ONNX, *_ORT), folder="plain"),
    Stage("quantize", ("optimize", "calibrate"), lambda r: [r.quantize], ("torch", *_ONNX, *_ORT), folder="plain",
          remedy="more samples in model.calibration and more bits lose less"),
    Stage("export", ("optimize", "quantize"), lambda r: [], (*_ONNX, *_ORT), folder="plain"),
    Stage("compile", ("quantize", "export"), lambda r: [], (*_ONNX, *_ORT), vendor=True,
          folder="plain"),
    Stage("bundle", ("optimize", "calibrate", "quantize", "export", "compile"), lambda r: [r.limits],
          (*_ONNX, *_ORT), vendor=True, folder="plain", whence=True),
)
"""from a plain ONNX graph"""
