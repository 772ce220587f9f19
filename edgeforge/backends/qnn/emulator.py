"""Runs a compiled x86 twin on Qualcomm's HTP emulator, in a child process.

Bit-exact from run to run, and slow: seconds per token for a 30-layer model. Its times say nothing
about a device. Weight-shared binaries are refused here: loading one kills the process that tries.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from edgeforge.backends import process
from edgeforge.backends.faults import in_text
from edgeforge.backends.qnn import complaints, wheel
from edgeforge.backends.qnn.compiler import CompiledPart
from edgeforge.backends.qnn.faults import FAULTS
from edgeforge.backends.qnn.job import JOB, PartJob
from edgeforge.errors import CompilerError
from edgeforge.export import record

WORKER = process.module_command("edgeforge.backends.qnn.emulator_worker")


class EmulatorCrashed(CompilerError):
    """The emulator's process was ended by a signal of its own; the system's SIGKILL says nothing of the graph."""


Feeds = Mapping[str, npt.NDArray[np.generic]]
Outputs = dict[str, npt.NDArray[np.generic]]


def emulate(part: CompiledPart, graph: str, feeds: Sequence[Feeds], timeout_s: float,
            memory_bytes: int | None = None) -> list[Outputs]:
    """Runs one graph of a twin once for each set of feeds; outputs by name, codes as stored.

    Args:
        timeout_s, memory_bytes: limits of the emulator's process; memory_bytes None: no limit.

    Raises:
        CompilerError: the part is weight-shared, the graph is unknown, a feed does not fit, or the
            emulator hung or refused.
        EmulatorCrashed: a signal ended it.
    """
    if part.weight_sharing:
        raise CompilerError(
            f"part {part.name} has shared weights: the x86 emulator cannot load it",
            "run its twin (weight_sharing=False), or give feeds to compile_part",
        )
    wrappers = {g.name: g.wrapper for g in part.graphs}
    if graph not in wrappers:
        raise CompilerError(f"part {part.name} has no graph {graph!r}, only {sorted(wrappers)}")
    options = {"soc_model": str(part.info.soc_model)}
    return _run(f"part {part.name}, graph {graph}", wrappers[graph], options, feeds, timeout_s, memory_bytes)


def compile_and_emulate(job: PartJob, feeds: Sequence[Feeds], timeout_s: float,
                        memory_bytes: int | None = None) -> list[Outputs]:
    """The same for a job's first graph, compiled and run in one process: no binary is loaded."""
    graph = job.graphs[0]
    where = f"part {job.name}, graph {graph.name}, compiled anew"
    return _run(where, graph.onnx, job.options, feeds, timeout_s, memory_bytes)


def emulate_loaded_or_anew(part: CompiledPart, graph: str, feeds: Sequence[Feeds], timeout_s: float,
                           memory_bytes: int | None, may_crash: bool) -> tuple[list[Outputs], str]:
    """Outputs as `emulate` gives them, and a note where the binary's loading crashed as it may (limits.CRASHING): the
    graph then ran in a process that compiled it anew."""
    try:
        return emulate(part, graph, feeds, timeout_s, memory_bytes), ""
    except EmulatorCrashed as error:
        if not may_crash:
            raise
        job = PartJob.load(part.folder / JOB)
        alone = replace(job, graphs=tuple(g for g in job.graphs if g.name == graph))
        outputs = compile_and_emulate(alone, feeds, timeout_s, memory_bytes)
        crash = error.message.partition("\n")[0]  # with its signal; the log's lines are no sentence of a report
        return outputs, f"{part.name} ran in a process that compiled it anew: {crash}"


def _run(where: str, model: Path, options: Mapping[str, str], feeds: Sequence[Feeds], timeout_s: float,
         memory_bytes: int | None) -> list[Outputs]:
    wheel.find()
    with tempfile.TemporaryDirectory(prefix="edgeforge-qnn-") as scratch:
        folder = Path(scratch)
        for index, one in enumerate(feeds):
            record.save_arrays(folder / f"{index}.in.npz", dict(one))
        job = {"model": str(model.resolve()), "options": dict(options), "runs": len(feeds)}
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        run = process.run_child(
            [*WORKER, str(folder / "job.json")], log=folder / "emulator.log", timeout_s=timeout_s,
            memory_bytes=memory_bytes, cwd=folder
        )
        if not run.ok:
            lines = "".join(f"\n    {line}" for line in complaints.culprits(run.log))
            known = in_text(FAULTS, run.log)[:1]
            hint = f"{known[0].cause}: {known[0].remedy}" if known else ""
            kind = EmulatorCrashed if run.signal not in ("", "SIGKILL") else CompilerError
            raise kind(f"{where}: the HTP emulator {run.ending()}{lines}", hint)
        try:
            return [record.load_arrays(folder / f"{index}.out.npz") for index in range(len(feeds))]
        except (OSError, ValueError, BadZipFile) as error:
            raise CompilerError(f"{where}: the HTP emulator left no readable outputs: {error}") from error
