"""Compiles one part into one context binary, in a child process, all or nothing."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeforge.backends.qnn import process, wheel
from edgeforge.backends.qnn.binary import ContextBinary, read_binary
from edgeforge.backends.qnn.job import JOB, LOG, RESULT, GraphJob, PartJob
from edgeforge.errors import CompilerError

__all__ = ["CompiledGraph", "CompiledPart", "GraphJob", "PartJob", "compile_part", "load_part"]
WORKER_MODULE = "edgeforge.backends.qnn.worker"
WORKER = process.module_command(WORKER_MODULE)


@dataclass(frozen=True)
class CompiledGraph:
    """Files of one graph.

    wrapper: EPContext .onnx that loads the graph out of the binary beside it, by name.
    outputs: .npz with the outputs for the job's feeds; None without feeds. dump: the QNN graph as the
    provider built it. trace: which ONNX nodes became which QNN ops.
    """

    name: str
    wrapper: Path
    outputs: Path | None
    dump: Path
    trace: Path


@dataclass(frozen=True)
class CompiledPart:
    """A finished part. The folder can be moved: nothing in it names its place."""

    name: str
    folder: Path
    binary: Path
    weight_sharing: bool
    graphs: tuple[CompiledGraph, ...]
    info: ContextBinary
    compile_seconds: float
    run_seconds: float
    peak_rss_bytes: int
    versions: dict[str, str]
    log: Path


def compile_part(job: PartJob, timeout_s: float) -> CompiledPart:
    """Compiles the part and publishes job.out as a whole.

    On failure job.out stays as it was, and job.failure keeps job.json and the log.

    Raises:
        CompilerError: no wheel, a refused graph, a crash, a hang, or a binary that is not what was asked for.
    """
    job.check()
    wheel.find()
    partial, failed = job.out.with_name(job.out.name + ".partial"), job.failure
    for stale in (partial, failed):
        shutil.rmtree(stale, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        job.save(partial / JOB)
        run = process.run_child(
            [*WORKER, str(partial / JOB)], log=partial / LOG, timeout_s=timeout_s, cwd=partial
        )
        if not run.ok or not (partial / RESULT).is_file():
            raise CompilerError(_failure(job, run), _rerun(failed))
        _verify(job, load_part(partial), failed)
    except BaseException:
        failed.parent.mkdir(parents=True, exist_ok=True)
        partial.replace(failed)
        raise
    _publish(partial, job.out)
    return load_part(job.out)


def load_part(folder: Path) -> CompiledPart:
    """Opens the folder that :func:`compile_part` made, and reads its binary back."""
    try:
        raw: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CompilerError(f"{folder} holds no finished part: {error}", "compile it again") from error

    def graph(name: str) -> CompiledGraph:
        outputs = folder / f"{name}.outputs.npz"
        return CompiledGraph(
            name,
            folder / f"{name}.onnx",
            outputs if outputs.is_file() else None,
            folder / f"{name}.qnn.json",
            folder / f"{name}.trace.json",
        )

    binary = folder / raw["binary"]
    return CompiledPart(
        raw["name"],
        folder,
        binary,
        raw["weight_sharing"],
        tuple(map(graph, raw["graphs"])),
        read_binary(binary),
        raw["compile_seconds"],
        raw["run_seconds"],
        raw["peak_rss_bytes"],
        raw["versions"],
        folder / LOG,
    )


def _verify(job: PartJob, part: CompiledPart, failed: Path) -> None:
    """The binary must be what the job asked for: the compiler falls back silently."""
    info, asked = part.info, sorted(g.name for g in job.graphs)
    found = sorted(g.name for g in info.graphs)
    problems = []
    if found != asked:
        problems.append(f"holds graphs {found}, not {asked}")
    if info.soc_model != job.soc_model:
        problems.append(f"is for SoC {info.soc_model}, not {job.soc_model}")
    if job.dsp_arch is not None and info.dsp_arch != job.dsp_arch:
        problems.append(f"is for v{info.dsp_arch}, not v{job.dsp_arch}")
    if problems:
        raise CompilerError(f"part {job.name}: the binary {' and '.join(problems)}", _rerun(failed))


def _failure(job: PartJob, run: process.ChildRun) -> str:
    ending = run.ending() if not run.ok else "wrote no result"
    lines = "".join(f"\n    {line}" for line in process.culprits(run.log))
    graphs = ", ".join(g.name for g in job.graphs)
    return f"part {job.name} ({graphs}): the HTP compiler {ending}{':' if lines else ''}{lines}"


def _rerun(failed: Path) -> str:
    return f"the log is {failed / LOG}; to run it alone: python -m {WORKER_MODULE} {failed / JOB}"


def _publish(partial: Path, out: Path) -> None:
    """Swaps the finished folder in; a reader sees the old one, then the new one."""
    old = out.with_name(out.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.replace(old)
    partial.replace(out)
    shutil.rmtree(old, ignore_errors=True)
