"""Executors: what runs a bundle's graphs. One module per accelerator, chosen by Target.executor."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from edgeforge_runtime import files
from edgeforge_runtime.errors import ManifestError
from edgeforge_runtime.manifest import Target

from .base import Arrays, Executor
from .coreml import CoreMLExecutor
from .cpu import CpuExecutor
from .htp import HtpExecutor
from .trt import TrtExecutor

__all__ = ["NAMES", "Arrays", "Executor", "known", "open_executor", "register"]

NAMES = ("onnx-cpu", "qnn-htp", "tensorrt")
_ON_A_MAC = ("coreml",)
Opener = Callable[[Target, Path], Executor]
_MORE: dict[str, Opener] = {}


def register(name: str, opener: Opener) -> None:
    """Lets open_executor find an executor that is not the runtime's own: a simulator of the toolchain's."""
    _MORE[name] = opener


def known() -> tuple[str, ...]:
    """What open_executor can open on this machine."""
    return (*NAMES, *(_ON_A_MAC if sys.platform == "darwin" else ()), *_MORE)


def open_executor(
    target: Target, folder: Path, *, exact: bool = False, threads: int | None = None
) -> Executor:
    """The executor that target asks for, with every file of the target loaded.

    Args:
        folder: the bundle; parts name their files relative to it.
        exact: no graph optimisation at all, so that a QDQ graph is the reference for its compiled twin
            (onnx-cpu; compiled binaries have nothing to switch off).
        threads: intra-op threads; all physical cores available to this process by default. Bits depend
            on it, also with `exact`: a matrix product is cut, and so summed, differently. Beside other
            busy processes 1 can be twice as fast as 2, since idle threads spin.

    Raises:
        ManifestError: no such executor, or a file is missing or not as long as the build made it.
        ExecutorError: a file does not load.
    """
    files.check(target, folder)
    if target.executor == "onnx-cpu":
        return CpuExecutor(target, folder, exact=exact, threads=threads)
    if target.executor == "qnn-htp":
        return HtpExecutor(target, folder)
    if target.executor == "tensorrt":
        return TrtExecutor(target, folder)
    if target.executor in _MORE:
        return _MORE[target.executor](target, folder)
    if target.executor == "coreml":
        return CoreMLExecutor(target, folder)
    raise ManifestError(f"no executor {target.executor!r}: this runtime has {', '.join(known())}")
