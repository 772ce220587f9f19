"""A graph before TensorRT's builder alone: of a job that failed, or of a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeforge.backends import process
from edgeforge.backends.ending import ChildFailed, Ending
from edgeforge.backends.tensorrt import limits, wheel
from edgeforge.backends.tensorrt.engine import WORKER_MODULE, build_engine, recorded
from edgeforge.backends.tensorrt.job import JOB, EngineJob, Shape
from edgeforge.backends.trial import Attempt
from edgeforge.errors import CompilerError
from edgeforge.targets import Chip

_NAME = "piece"


@dataclass(frozen=True)
class TrtTrial:
    """See Trial. Nothing runs an engine here: no attempt has outputs. A piece is built for the shapes that it states.

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
        return dataclasses.replace(self.job, onnx=model, profiles=(_inputs(model),), out=out, failed=None)


def of_file(model: Path, feeds: Path | None, chip: Chip) -> TrtTrial:
    """An ONNX file with fixed shapes, for a GPU."""
    job = EngineJob(model, limits.compute(limits.gpu(chip)), (), model.parent / _NAME)
    return TrtTrial(model.name, job, feeds)


def of_job(folder: Path) -> list[TrtTrial] | None:
    """The model of the job in a folder at each of its widths, one a trial, bound and saved beside the job; None: no job
    of ours is there.

    Raises:
        CompilerError: the job's model is gone, or it is no job.
    """
    if not (folder / JOB).is_file():
        return None
    try:
        job = EngineJob.load(folder / JOB)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CompilerError(f"{folder / JOB} is not a compile job: {type(error).__name__} {error}") from error
    job.check()
    known, memory = recorded(folder)
    found = []
    for number, shapes in enumerate(job.profiles):
        name = f"profile_{number}"
        bound = dataclasses.replace(job, onnx=_bound(job.onnx, shapes, folder, name), profiles=(shapes,))
        found.append(TrtTrial(name, bound, None, known, memory))
    return found


def _bound(model: Path, shapes: Mapping[str, Shape], folder: Path, name: str) -> Path:
    """A copy of the model in which every dimension is the profile's."""
    import onnx_ir as ir

    from edgeforge.graph import edit

    loaded = ir.load(model)
    graph = loaded.graph
    known = {d: n for v in graph.inputs for d, n in zip(edit.known_dims(v), shapes[str(v.name)], strict=True)}
    for value in [*graph.inputs, *(o for n in graph for o in n.outputs)]:
        shape = edit.dims(value)
        if shape is not None and all(d in known or isinstance(d, int) for d in shape):
            edit.set_shape(value, [d if isinstance(d, int) else known[d] for d in shape])
        else:
            value.shape = None
    ir.save(loaded, folder / f"{name}.onnx", external_data=f"{name}.data", size_threshold_bytes=1024)
    return folder / f"{name}.onnx"


def _inputs(model: Path) -> dict[str, Shape]:
    import onnx

    def shape(value: Any) -> Shape:
        dims = value.type.tensor_type.shape.dim
        if any(not d.HasField("dim_value") and not d.dim_param for d in dims):
            raise CompilerError(f"{model}: input {value.name} has dimensions without a size")
        return tuple(int(d.dim_value) or 1 for d in dims)

    return {v.name: shape(v) for v in onnx.load(model, load_external_data=False).graph.input}
