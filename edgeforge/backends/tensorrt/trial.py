"""A graph before TensorRT's builder alone: of a job that failed, or of a file."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeforge.backends import process
from edgeforge.backends.ending import ChildFailed, Ending
from edgeforge.backends.tensorrt import limits, wheel
from edgeforge.backends.tensorrt.engine import WORKER_MODULE, build_engine, recorded
from edgeforge.backends.tensorrt.job import JOB, EngineJob, Range
from edgeforge.backends.trial import Attempt
from edgeforge.errors import CompilerError
from edgeforge.targets import Chip

_NAME = "piece"


@dataclass(frozen=True)
class TrtTrial:
    """See Trial. Nothing runs an engine here: no attempt has outputs. A piece's inputs have the shapes that it states.

    memory: the limit that the job had, bytes; None: what is free.
    """

    name: str
    job: EngineJob
    feeds: Path | None = None
    known: Ending | None = None
    memory: int | None = None

    @property
    def model(self) -> Path:
        return self.job.onnx

    @property
    def versions(self) -> dict[str, str]:
        return wheel.find().stamp()

    def write(self, model: Path, feeds: Path | None, folder: Path) -> str:
        self._of(model, folder / _NAME).save(folder / JOB)
        return f"python -m {WORKER_MODULE} {JOB}"

    def attempt(self, model: Path, feeds: Path | None, work: Path, timeout_s: float) -> Attempt:
        try:
            build_engine(self._of(model, work / _NAME), timeout_s, self.memory or process.free_bytes())
        except ChildFailed as error:
            return Attempt(error.ending, None)
        return Attempt(None, None)

    def _of(self, model: Path, out: Path) -> EngineJob:
        known = self.job.profiles
        own = tuple({n: shapes.get(n, r) for n, r in _inputs(model).items()} for shapes in known) or (_inputs(model),)
        return dataclasses.replace(self.job, onnx=model, profiles=own, out=out, failed=None)


def of_file(model: Path, feeds: Path | None, chip: Chip) -> TrtTrial:
    """An ONNX file with fixed shapes, for a GPU."""
    job = EngineJob(model, limits.compute(limits.gpu(chip)), (), model.parent / _NAME)
    return TrtTrial(model.name, job, feeds)


def of_job(folder: Path) -> list[TrtTrial] | None:
    """The model of the job in a folder; None when the folder holds no job of ours. CompilerError: its file is gone."""
    if not (folder / JOB).is_file():
        return None
    try:
        job = EngineJob.load(folder / JOB)
    except (ValueError, KeyError, TypeError):
        return None  # another backend's
    job.check()
    return [TrtTrial(job.onnx.parent.name, job, None, *recorded(folder))]


def _inputs(model: Path) -> dict[str, Range]:
    import onnx

    def shape(value: Any) -> Range:
        dims = value.type.tensor_type.shape.dim
        if any(not d.HasField("dim_value") and not d.dim_param for d in dims):
            raise CompilerError(f"{model}: input {value.name} has dimensions without a size")
        one = tuple(int(d.dim_value) or 1 for d in dims)
        return one, one, one

    return {v.name: shape(v) for v in onnx.load(model, load_external_data=False).graph.input}
