"""A graph before the HTP compiler alone: of a job that failed, or of a file."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from edgeforge.backends import process
from edgeforge.backends.ending import ChildFailed, Ending
from edgeforge.backends.qnn import wheel
from edgeforge.backends.qnn.chips import snapdragon
from edgeforge.backends.qnn.compiler import WORKER_MODULE, compile_part, recorded
from edgeforge.backends.qnn.job import JOB, GraphJob, PartJob
from edgeforge.backends.trial import Attempt
from edgeforge.errors import CompilerError
from edgeforge.targets import Chip

_NAME = "piece"


@dataclass(frozen=True)
class QnnTrial:
    """See Trial. job: the settings, with this one graph; never weight-shared, for there is nothing to share with.

    memory: the limit that the job had, bytes; None: what is free.
    """

    name: str
    job: PartJob
    known: Ending | None = None
    memory: int | None = None

    @property
    def model(self) -> Path:
        return self.job.graphs[0].onnx

    @property
    def feeds(self) -> Path | None:
        return self.job.graphs[0].feeds

    @property
    def versions(self) -> dict[str, str]:
        return wheel.find().stamp()

    def write(self, model: Path, feeds: Path | None, folder: Path) -> str:
        self._of(model, feeds, folder / _NAME).save(folder / JOB)
        return f"python -m {WORKER_MODULE} {JOB}"

    def attempt(self, model: Path, feeds: Path | None, work: Path, timeout_s: float) -> Attempt:
        try:
            part = compile_part(self._of(model, feeds, work / _NAME), timeout_s, self.memory or process.free_bytes())
        except ChildFailed as error:
            return Attempt(error.ending, None)
        return Attempt(None, part.graphs[0].outputs)

    def _of(self, model: Path, feeds: Path | None, out: Path) -> PartJob:
        graph = GraphJob(_NAME, model, feeds)
        return dataclasses.replace(self.job, name=_NAME, graphs=(graph,), out=out, failed=None)


def of_file(model: Path, feeds: Path | None, chip: Chip) -> QnnTrial:
    """An ONNX file with integer inputs and outputs, for a chip."""
    known = snapdragon(chip)
    job = PartJob(_NAME, (GraphJob(_NAME, model, feeds),), known.soc_model, model.parent / _NAME, False, known.vtcm_mb,
                  dsp_arch=known.dsp_arch)
    return QnnTrial(model.name, job)


def of_job(folder: Path) -> list[QnnTrial] | None:
    """Every graph of the job in a folder, one a trial; None when the folder holds no job of ours.

    Raises:
        CompilerError: the job's files are gone.
    """
    if not (folder / JOB).is_file():
        return None
    try:
        job = PartJob.load(folder / JOB)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CompilerError(f"{folder / JOB} is not a compile job: {type(error).__name__} {error}") from error
    job.check()
    known, memory = recorded(folder)
    return [QnnTrial(g.name, dataclasses.replace(job, graphs=(g,), weight_sharing=False), known, memory)
            for g in job.graphs]


