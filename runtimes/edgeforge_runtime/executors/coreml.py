"""coreml: packages on a Mac, through coremltools' own CompiledMLModel. Needs numpy and coremltools; imported when a
bundle's target asks for it.

A package is compiled once, each of its functions loaded from what came out. Where the model keeps the cache, all
functions of a package are handed one state. Written against coremltools 9.0; never run on a Mac by its authors.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from edgeforge_runtime.errors import ExecutorError
from edgeforge_runtime.manifest import WRITE, Graph, Part, Target

from .base import Arrays, join_logits, run_parts

SUFFIX, UNITS = ".mlpackage", "CPU_AND_NE"
_INSTALL = 'pip install "coremltools>=9"'


class CoreMLExecutor:
    """Runs the function that a part's graph names. Option `units` of the target: a name of ct.ComputeUnit."""

    def __init__(self, target: Target, folder: Path, ct: Any = None) -> None:
        """ct: coremltools, what is installed by default.

        Raises:
            ExecutorError: no Mac, no coremltools, or a package that Core ML does not load.
        """
        self._ct = ct or _module()
        self._scratch = Path(tempfile.mkdtemp(prefix="edgeforge-coreml-"))
        self._models: dict[tuple[str, str], Any] = {}
        self._states: dict[str, Any] = {}
        try:
            self._open(target, folder)
        except BaseException:
            self.close()
            raise

    def run(self, graph: Graph, feeds: Arrays) -> Arrays:
        """See Executor.run."""
        return run_parts(graph, feeds, self._run)

    def close(self) -> None:
        """Frees the models; what was compiled is removed."""
        self._models.clear()
        self._states.clear()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _open(self, target: Target, folder: Path) -> None:
        units = self._units(target.options.get("units", UNITS))
        compiled: dict[str, str] = {}
        for graph in target.graphs:
            keeps = WRITE in graph.boundary()[0]
            for part in graph.parts:
                if part.file not in compiled:
                    compiled[part.file] = self._compile(package(folder / part.file), len(compiled))
                model = self._load(compiled[part.file], units, part)
                self._models[part.file, part.graph] = model
                if keeps and any(t.name == WRITE for t in part.inputs) and part.file not in self._states:
                    self._states[part.file] = model.make_state()

    def _compile(self, path: Path, index: int) -> str:
        try:
            return str(self._ct.models.utils.compile_model(str(path), str(self._scratch / f"{index}.mlmodelc")))
        except Exception as error:  # Core ML's own, by way of Objective-C
            raise ExecutorError(f"{path} does not compile: {error}") from error

    def _units(self, name: str) -> Any:
        known = [unit.name for unit in self._ct.ComputeUnit]
        if name not in known:
            raise ExecutorError(f"compute units {name!r} are unknown to Core ML; it has {', '.join(known)}")
        return self._ct.ComputeUnit[name]

    def _load(self, compiled: str, units: Any, part: Part) -> Any:
        try:
            return self._ct.models.CompiledMLModel(compiled, compute_units=units, function_name=part.graph)
        except Exception as error:  # as RuntimeError: what the Neural Engine's compiler refuses, say
            raise ExecutorError(f"{part.graph} of {part.file} does not load: {error}") from error

    def _run(self, part: Part, feeds: Arrays) -> Arrays:
        model = self._models.get((part.file, part.graph))
        if model is None:
            raise ExecutorError(f"{part.file} is not loaded: the executor is closed")
        try:
            made = model.predict(feeds, state=self._states.get(part.file))
        except Exception as error:
            raise ExecutorError(f"{part.graph} of {part.file} failed: {error}") from error
        arrays = join_logits(made)
        return {t.name: arrays[t.name].reshape(t.shape).astype(t.dtype) for t in part.outputs}


def package(file: Path) -> Path:
    """The .mlpackage that a file lies in."""
    found = next((p for p in (file, *file.parents) if p.suffix == SUFFIX), None)
    if found is None:
        raise ExecutorError(f"{file} lies in no {SUFFIX}")
    return found


def _module() -> Any:
    if sys.platform != "darwin":
        raise ExecutorError("Core ML runs on macOS only; copy the bundle to a Mac")
    try:
        return importlib.import_module("coremltools")
    except ImportError as error:
        raise ExecutorError(f"this target needs coremltools: {_INSTALL} ({error})") from error
