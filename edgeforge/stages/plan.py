"""The stages in order: what each reads, and what its result depends on."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeforge.build import Build
from edgeforge.gates import Check
from edgeforge.recipe import Recipe

_TORCH, _ONNX, _ORT = ("torch", "transformers"), ("onnx", "onnx-ir", "onnxsim"), ("onnxruntime", "numpy")


@dataclass(frozen=True)
class Stage:
    """One step. needs: stages whose artifacts it reads. keys: the recipe's part that it reads.
    rooms: source files and folders under edgeforge/ whose change reruns it. tools: distributions, likewise.
    """

    name: str
    needs: tuple[str, ...]
    keys: Callable[[Recipe], Any]
    rooms: tuple[str, ...]
    tools: tuple[str, ...]

    def run(self, build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
        """Calls edgeforge.stages.<name>.run; its imports are paid for only now."""
        module = importlib.import_module(f"edgeforge.stages.{self.name}")
        checks: list[Check] = module.run(build, sources, out)
        return checks


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
