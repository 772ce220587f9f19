"""Builds one engine in a child process, all or nothing."""

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
from edgeforge.backends.tensorrt import header, layers, wheel
from edgeforge.backends.tensorrt.faults import FAULTS
from edgeforge.backends.tensorrt.job import ENGINE, JOB, LAYERS, LOG, REFUSED, RESULT, EngineJob
from edgeforge.errors import CompilerError

WORKER_MODULE = "edgeforge.backends.tensorrt.worker"
WORKER = process.module_command(WORKER_MODULE)
FAILURE = "failure.json"
_LINES = 6


@dataclass(frozen=True)
class Engine:
    """A finished engine. The folder can be moved.

    weights_bytes: of all constants, each counted once. activation_bytes: a profile. header: None where it is not of
    TensorRT-RTX, whose form alone is known.
    """

    folder: Path
    weights_bytes: int
    activation_bytes: tuple[int, ...]
    seconds: float
    compute: tuple[str, ...]
    versions: dict[str, str]
    header: header.Header | None

    @property
    def path(self) -> Path:
        return self.folder / ENGINE

    def dump(self) -> layers.Dump:
        """The builder's account; CompilerError: in no form that is known."""
        return layers.read(self.folder / LAYERS)


def build_engine(job: EngineJob, timeout_s: float, memory_bytes: int | None = None) -> Engine:
    """Builds, and publishes job.out as a whole. On failure job.failure keeps the job, the log and failure.json.

    Raises:
        CompilerError: TensorRT is not installed, or a bad job.
        ChildFailed: a model that the parser refuses (by module path), no engine, a crash, a limit.
    """
    job.check()
    wheel.find()
    partial, failed = job.out.with_name(job.out.name + ".partial"), job.failure
    for stale in (partial, failed):
        shutil.rmtree(stale, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        job.save(partial / JOB)
        # Relative: the order of an engine's records depends on where the builder's memory lies, and so on what lies
        # before it, down to the length of this path.
        run = process.run_child([*WORKER, JOB], log=partial / LOG, timeout_s=timeout_s,
                                memory_bytes=memory_bytes, cwd=partial)
        if not run.ok:
            raise _failed(job, _kind(run), run.ending(), run)
        _load(job, partial, run)
    except BaseException as error:
        failed.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(error, ChildFailed):
            _record(partial, error.ending, memory_bytes)
        partial.replace(failed)
        raise
    shutil.rmtree(job.out, ignore_errors=True)
    partial.replace(job.out)
    return load_engine(job.out)


def load_engine(folder: Path) -> Engine:
    """Opens the folder that build_engine made; CompilerError: it holds no finished engine."""
    try:
        raw: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        own = wheel.RTX.module in raw["versions"]
        return Engine(folder, int(raw["weights_bytes"]), tuple(raw["activation_bytes"]), float(raw["seconds"]),
                      tuple(raw["compute"]), dict(raw["versions"]), header.read(folder / ENGINE) if own else None)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CompilerError(f"{folder} holds no finished engine: {RESULT}: {type(error).__name__} {error}",
                            "build it again") from error


def _load(job: EngineJob, partial: Path, run: process.ChildRun) -> None:
    try:
        load_engine(partial)
    except CompilerError as error:
        raise _failed(job, "garbage", f"ended well, and what it left cannot be used: {error.message}", run) from error


def _kind(run: process.ChildRun) -> Kind:
    kinds: dict[process.Limit, Kind] = {"time": "hung", "memory": "memory", "asked": "stopped"}
    if run.stopped is not None:
        return kinds[run.stopped]
    return "crashed" if run.signal else "refused"


def _failed(job: EngineJob, kind: Kind, words: str, run: process.ChildRun) -> ChildFailed:
    refusals = [line.removeprefix(REFUSED).split("\t", 1) for line in run.log.splitlines() if line.startswith(REFUSED)]
    lines = [f"{module_path(name)}: {why}" for name, why in (r for r in refusals if len(r) == 2)]
    lines += [line for line in run.log.splitlines() if line.startswith(("error: ", "internal_error: ", "Error: "))]
    ending = Ending(kind, words, run.signal, tuple(dict.fromkeys(lines[:_LINES])), frozenset(r[0] for r in refusals))
    shown = "".join(f"\n    {line}" for line in ending.lines)
    advice = _advice(ending, run.log)
    rerun = (f"to run it alone: python -m {WORKER_MODULE} {shlex.quote(str(job.failure / JOB))}",
             f"to find the smallest part that fails: edgeforge bisect {shlex.quote(str(job.failure))}")
    return ChildFailed(f"{job.onnx.name} for {', '.join(job.compute) or 'the GPU here'}: TensorRT's builder {words}"
                       f"{':' if shown else ''}{shown}", ending,
                       "; ".join([*advice, f"the log is {job.failure / LOG}", *rerun]))


def module_path(node: str) -> str:
    """The value that a node of ours makes, which bears its module's path: `<value>:<Op>` or `<value>/<step>:<Op>`."""
    return node.rpartition(":")[0] or node or "the model"


def _advice(ending: Ending, log: str) -> list[str]:
    if ending.kind == "memory":
        return ["raise `compile.memory_mb`"]
    if ending.kind == "hung":
        return ["raise `compile.timeout_s`"]
    return [f"{f.cause}: {f.remedy}" for f in in_text(FAULTS, log)[:1]]


def _record(folder: Path, ending: Ending, memory_bytes: int | None) -> None:
    facts = {"kind": ending.kind, "words": ending.words, "signal": ending.signal, "lines": ending.lines,
             "nodes": sorted(ending.nodes), "memory_bytes": memory_bytes, "tools": wheel.find().stamp()}
    (folder / FAILURE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def recorded(failed: Path) -> tuple[Ending | None, int | None]:
    """How the job in this folder failed, and its memory limit; None where the folder does not say."""
    try:
        raw = json.loads((failed / FAILURE).read_text(encoding="utf-8"))
        ending = Ending(raw["kind"], raw["words"], raw["signal"], tuple(raw["lines"]), frozenset(raw["nodes"]))
        return ending, raw["memory_bytes"]
    except (OSError, ValueError, KeyError, TypeError):
        return None, None
