"""Compiles one part into one context binary, in a child process, all or nothing."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeforge.backends import process
from edgeforge.backends.ending import ChildFailed, Ending, Kind
from edgeforge.backends.faults import in_text
from edgeforge.backends.qnn import complaints, wheel
from edgeforge.backends.qnn.binary import ContextBinary, read_binary
from edgeforge.backends.qnn.faults import FAULTS
from edgeforge.backends.qnn.job import JOB, LOG, RESULT, GraphJob, PartJob
from edgeforge.errors import CompilerError

__all__ = ["CompiledGraph", "CompiledPart", "GraphJob", "PartJob", "compile_part", "load_part", "recorded"]
WORKER_MODULE = "edgeforge.backends.qnn.worker"
WORKER = process.module_command(WORKER_MODULE)
FAILURE = "failure.json"
_RESULT = ("name", "weight_sharing", "compile_seconds", "run_seconds", "peak_rss_bytes", "versions")


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


def compile_part(job: PartJob, timeout_s: float, memory_bytes: int | None = None,
                 group: process.Group | None = None) -> CompiledPart:
    """Compiles the part and publishes job.out as a whole.

    On failure job.out stays as it was, and job.failure keeps job.json, the log and failure.json. Of a compiler that was
    stopped, by its group or by Ctrl-C, nothing is kept.

    Args:
        memory_bytes: most resident memory of the compiler; None: no limit.
        group: stops it together with others.

    Raises:
        CompilerError: no wheel, or a bad job.
        ChildFailed: a refused graph, a crash, a limit, or a binary that is not what was asked for.
    """
    job.check()
    wheel.find().check()
    partial, failed = job.out.with_name(job.out.name + ".partial"), job.failure
    for stale in (partial, failed):
        shutil.rmtree(stale, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        job.save(partial / JOB)
        run = process.run_child([*WORKER, str(partial / JOB)], log=partial / LOG, timeout_s=timeout_s,
                                memory_bytes=memory_bytes, cwd=partial, group=group)
        _verify(job, partial, run)
    except BaseException as error:
        if not isinstance(error, Exception) or (isinstance(error, ChildFailed) and error.ending.kind == "stopped"):
            shutil.rmtree(partial)
            raise
        failed.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(error, ChildFailed):
            _record(partial, job, error.ending, memory_bytes)
        partial.replace(failed)
        raise
    _publish(partial, job.out)
    return load_part(job.out)


def load_part(folder: Path) -> CompiledPart:
    """Opens the folder that :func:`compile_part` made, and reads its binary back."""
    try:
        raw: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        names = [str(n) for n in raw["graphs"]]
        known = {k: raw[k] for k in _RESULT}
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"{type(error).__name__} {error}"
        raise CompilerError(f"{folder} holds no finished part: {RESULT}: {what}", "compile it again") from error

    def graph(name: str) -> CompiledGraph:
        outputs = folder / f"{name}.outputs.npz"
        return CompiledGraph(
            name,
            folder / f"{name}.onnx",
            outputs if outputs.is_file() else None,
            folder / f"{name}.qnn.json",
            folder / f"{name}.trace.json",
        )

    binary = folder / str(raw["binary"])
    return CompiledPart(folder=folder, binary=binary, graphs=tuple(map(graph, names)), info=read_binary(binary),
                        log=folder / LOG, **known)


def _verify(job: PartJob, partial: Path, run: process.ChildRun) -> None:
    """The child must have ended well, and the binary be what the job asked for: the compiler falls back silently."""
    if not run.ok:
        raise _failed(job, _kind(run), run.ending(), run)
    try:
        info = load_part(partial).info
    except CompilerError as error:
        raise _failed(job, "garbage", f"ended well, and what it left cannot be used: {error.message}", run) from error
    asked, found = sorted(g.name for g in job.graphs), sorted(g.name for g in info.graphs)
    problems = []
    if found != asked:
        problems.append(f"holds graphs {found}, not {asked}")
    if info.soc_model != job.soc_model:
        problems.append(f"is for SoC {info.soc_model}, not {job.soc_model}")
    if job.dsp_arch is not None and info.dsp_arch != job.dsp_arch:
        problems.append(f"is for v{info.dsp_arch}, not v{job.dsp_arch}")
    if problems:
        raise _failed(job, "garbage", f"wrote a binary that {' and '.join(problems)}", run)


def _kind(run: process.ChildRun) -> Kind:
    if run.stopped is not None:
        kinds: dict[process.Limit, Kind] = {"time": "hung", "memory": "memory", "asked": "stopped"}
        return kinds[run.stopped]
    return "crashed" if run.signal else "refused"


def _failed(job: PartJob, kind: Kind, words: str, run: process.ChildRun) -> ChildFailed:
    ending = Ending(kind, words, run.signal, complaints.culprits(run.log), complaints.refused_nodes(run.log))
    lines = "".join(f"\n    {line}" for line in ending.lines)
    graphs = ", ".join(g.name for g in job.graphs)
    message = f"part {job.name} ({graphs}): the HTP compiler {words}{':' if lines else ''}{lines}"
    return ChildFailed(message, ending, "; ".join([*_advice(ending, run.log), *_rerun(job.failure)]))


def _advice(ending: Ending, log: str) -> list[str]:
    smaller = "make the parts smaller (`split.part_bytes`) or `target.context` lower"
    if ending.kind == "memory":
        return [f"raise `compile.memory_mb`, or {smaller}"]
    if ending.kind == "hung":
        return [f"raise `compile.timeout_s`, or {smaller}"]
    if ending.signal == "SIGKILL":
        return [f"if the system stopped it for want of memory: {smaller}"]
    return [f"{f.cause}: {f.remedy}" for f in in_text(FAULTS, log)[:1]]


def _rerun(failed: Path) -> list[str]:
    return [f"the log is {failed / LOG}",
            f"to run it alone: python -m {WORKER_MODULE} {shlex.quote(str(failed / JOB))}",
            f"to find the smallest part that fails: edgeforge bisect {shlex.quote(str(failed))}"]


def _record(folder: Path, job: PartJob, ending: Ending, memory_bytes: int | None) -> None:
    facts = {"part": job.name, "graphs": [g.name for g in job.graphs], "kind": ending.kind, "words": ending.words,
             "signal": ending.signal, "lines": ending.lines, "nodes": sorted(ending.nodes),
             "memory_bytes": memory_bytes, "tools": wheel.find().stamp()}
    (folder / FAILURE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def recorded(failed: Path) -> tuple[Ending | None, int | None]:
    """How the job in this folder failed, and its memory limit; None where the folder does not say."""
    try:
        raw = json.loads((failed / FAILURE).read_text(encoding="utf-8"))
        ending = Ending(raw["kind"], raw["words"], raw["signal"], tuple(raw["lines"]), frozenset(raw["nodes"]))
        return ending, raw["memory_bytes"]
    except (OSError, ValueError, KeyError, TypeError):
        return None, None


def _publish(partial: Path, out: Path) -> None:
    """Swaps the finished folder in; a reader sees the old one, then the new one."""
    old = out.with_name(out.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.replace(old)
    partial.replace(out)
    shutil.rmtree(old, ignore_errors=True)
