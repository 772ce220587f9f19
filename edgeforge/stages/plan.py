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

_TORCH, _ONNX, _ORT = ("torch", "transformers"), ("onnx", "onnx-ir", "onnxsim"), ("onnxruntime", "numpy")


@dataclass(frozen=True)
class Stage:
    """One step. needs: stages whose artifacts it reads. keys: the recipe's part that it reads.
    rooms: source files and folders under edgeforge/ whose change reruns it. tools: distributions, likewise.
    folder: where its module lies, under stages/.
    """

    name: str
    needs: tuple[str, ...]
    keys: Callable[[Recipe], Any]
    rooms: tuple[str, ...]
    tools: tuple[str, ...]
    folder: str = ""

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


STAGES = (
    Stage("adapt", (), lambda r: [r.target.context, r.target.prefill, r.gates.windows, r.gates.adapt_db],
          ("adapt", "calibrate/text.py", "graph/store.py", "stages/adapt.py"), (*_TORCH, *_ONNX, *_ORT, "onnxscript")),
    Stage("optimize", ("adapt",), lambda r: [r.gates.optimize_db],
          ("graph", "stages/adapt.py", "stages/optimize.py"), (*_ONNX, *_ORT)),
    Stage("transform", ("adapt", "optimize"),
          lambda r: [r.calibrate, r.quantize.transforms, r.quantize.embedding, r.gates.optimize_db],
          ("quantize", "calibrate", "graph", "stages/adapt.py", "stages/reading.py", "stages/transform.py"),
          (*_ONNX, *_ORT)),
    Stage("calibrate", ("transform",), lambda r: [r.calibrate, r.quantize.rounding],
          ("quantize", "calibrate", "graph", "stages/reading.py", "stages/calibrate.py"), (*_ONNX, *_ORT)),
    Stage("quantize", ("adapt", "transform", "calibrate"), lambda r: [r.quantize, r.gates],
          ("quantize", "calibrate", "graph", "stages/calibrate.py", "stages/quantize.py"), (*_ONNX, *_ORT)),
    Stage("export", ("adapt", "transform", "quantize"), lambda r: [],
          ("export", "stages/export.py"), (*_ONNX, *_ORT)),
    Stage("split", ("transform", "quantize", "export"), lambda r: [r.split, r.gates.sha_db, r.gates.split_db],
          ("graph", "quantize", "export", "stages/split.py"), (*_ONNX, *_ORT)),
    Stage("compile", ("split",), lambda r: [r.target, r.compile, r.gates],
          ("backends", "export/record.py", "stages/compile.py"), (*_ORT, "onnxruntime-qnn")),
    Stage("bundle", ("adapt", "optimize", "transform", "calibrate", "quantize", "export", "split", "compile"),
          lambda r: [r.target],
          ("backends", "report", "stages/bundle.py"), (*_ORT, "onnxruntime-qnn")),
)
"""from a language model's checkpoint"""

_PLAIN = ("onnx_source.py", "calibrate", "graph", "quantize", "stages/plain")
GRAPH_STAGES = (
    Stage("optimize", (), lambda r: [r.gates.optimize_db], _PLAIN, (*_ONNX, *_ORT, "onnxscript"), "plain"),
    Stage("calibrate", ("optimize",), lambda r: [r.quantize.rounding], _PLAIN, (*_ONNX, *_ORT), "plain"),
    Stage("quantize", ("optimize", "calibrate"), lambda r: [r.quantize, r.gates.quantize_db], _PLAIN,
          (*_ONNX, *_ORT), "plain"),
    Stage("export", ("optimize", "quantize"), lambda r: [], ("export", *_PLAIN), (*_ONNX, *_ORT), "plain"),
    Stage("compile", ("quantize", "export"), lambda r: [r.target.chip, r.compile, r.gates.emulator_db],
          ("backends", "export/record.py", *_PLAIN), (*_ORT, "onnxruntime-qnn"), "plain"),
    Stage("bundle", ("optimize", "calibrate", "quantize", "export", "compile"), lambda r: [r.target.chip],
          ("backends", "report", *_PLAIN), (*_ORT, "onnxruntime-qnn"), "plain"),
)
"""from a plain ONNX graph"""
