"""The one command that builds the engine where the GPU is, for GPUs that no other machine builds for (Jetson).

trtexec comes with TensorRT. Its options are read off its documentation and public source; the command has not been run
here. An attention that the GPU has no kernel for may be computed by several (`--decomposableAttentions`), as the
builder here is told, too; `--stronglyTyped` is needed by TensorRT 10, and 11 ignores it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from edgeforge.backends.tensorrt.job import ENGINE, Shape
from edgeforge.graph import store

SCRIPT = "build_engine.sh"
_HEAD = """#!/bin/sh
# Builds the engine of this folder's ONNX for the GPU of this machine; needs TensorRT 10.16 or later (trtexec).
set -e
cd "$(dirname "$0")"
"""
_BOUNDS = ("minShapes", "optShapes", "maxShapes")


def write(folder: Path, profiles: Sequence[Mapping[str, Shape]], model: ir.Model) -> None:
    """The command as a script beside model.onnx, which leaves the engine in the folder above."""
    open_inputs = [str(v.name) for v in model.graph.inputs if not all(isinstance(d, int) for d in v.shape or ())]
    words = ["trtexec", f"--onnx={store.MODEL}", f"--saveEngine=../{ENGINE}", "--stronglyTyped",
             "--decomposableAttentions='*'", "--skipInference", "--profilingVerbosity=detailed"]
    for number, shapes in enumerate(profiles):
        words.append(f"--profile={number}")
        words += [f"--{bound}=" + ",".join(f"{n}:{_shown(shapes[n])}" for n in open_inputs) for bound in _BOUNDS]
    path = folder / SCRIPT
    path.write_text(_HEAD + " \\\n  ".join(words) + "\n", encoding="utf-8")
    path.chmod(0o755)


def _shown(shape: Shape) -> str:
    return "x".join(map(str, shape))
