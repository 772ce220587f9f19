"""The stages in order: what each reads, and what its result depends on."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    reads what the build starts from. whence: it writes down where that lay.
    """

    name: str
    needs: tuple[str, ...]
    keys: Callable[[Recipe], Any]
    tools: tuple[str, ...]
    vendor: bool = False
    folder: str = ""
    opens: str = ""
    whence: bool = False

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
    return GRAPH_STAGES if isinstance(recipe.model, OnnxModel) else STAGES


def _scaled_for(recipe: Recipe) -> Any:
    """The grids of weights that channels are scaled for; without that transform no other depends on them."""
    return [recipe.quantize.weights, recipe.quantize.block] if "scale_channels" in recipe.quantize.transforms else None


STAGES = (
    Stage("adapt", (), lambda r: [r.target.context, r.target.prefill, r.gates.windows],
          (*_TORCH, *_ONNX, *_ORT, "onnxscript"), opens="edgeforge.checkpoint"),
    Stage("optimize", ("adapt",), lambda r: [], (*_ONNX, *_ORT)),
    Stage("text", (), lambda r: [r.target.context, r.gates.windows, r.calibrate], (*_TORCH, *_ONNX, *_ORT),
          opens="edgeforge.checkpoint"),
    Stage("transform", ("adapt", "optimize", "text"),
          lambda r: [r.quantize.transforms, r.quantize.embedding, r.quantize.kv, _scaled_for(r)],
          ("torch", *_ONNX, *_ORT)),
    Stage("calibrate", ("text", "transform"), lambda r: [], (*_ONNX, *_ORT)),
    Stage("quantize", ("adapt", "text", "transform", "calibrate"), lambda r: [r.quantize],
          ("torch", *_ONNX, *_ORT)),
    Stage("export", ("adapt", "transform", "quantize"), lambda r: [], (*_ONNX, *_ORT)),
    Stage("split", ("transform", "quantize", "export"),
          lambda r: [r.split], (*_ONNX, *_ORT)),
    Stage("compile", ("split",), lambda r: [r.target], (*_ONNX, *_ORT), vendor=True),
    Stage("bundle", ("adapt", "optimize", "text", "transform", "calibrate", "quantize", "export", "split", "compile"),
          lambda r: [r.target, r.limits], (*_ONNX, *_ORT), vendor=True, whence=True),
)
"""from a language model's checkpoint"""

GRAPH_STAGES = (
    Stage("optimize", (), lambda r: [], (*_ONNX, *_ORT, "onnxscript"), folder="plain",
          opens="edgeforge.onnx_source"),
    Stage("calibrate", ("optimize",), lambda r: [], (*_ONNX, *_ORT), folder="plain"),
    Stage("quantize", ("optimize", "calibrate"), lambda r: [r.quantize], ("torch", *_ONNX, *_ORT), folder="plain"),
    Stage("export", ("optimize", "quantize"), lambda r: [], (*_ONNX, *_ORT), folder="plain"),
    Stage("compile", ("quantize", "export"), lambda r: [], (*_ONNX, *_ORT), vendor=True,
          folder="plain"),
    Stage("bundle", ("optimize", "calibrate", "quantize", "export", "compile"), lambda r: [r.limits],
          (*_ONNX, *_ORT), vendor=True, folder="plain", whence=True),
)
"""from a plain ONNX graph"""
