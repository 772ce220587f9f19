"""Work of coremltools' and torch's in a process of its own: they print, crash, hang, and take gigabytes that they do
not give back."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeforge import errors
from edgeforge.backends import failed, process
from edgeforge.backends.coreml import limits
from edgeforge.backends.ending import ChildFailed, Ending
from edgeforge.errors import EdgeForgeError, UnsupportedError

JOB, RESULT, LOG = "coreml_job.json", "result.json", "work.log"
MODULE = "edgeforge.backends.coreml.worker"
WORKER = process.module_command(MODULE)
_KINDS: dict[str, type[EdgeForgeError]] = {k.__name__: k for k in (errors.UnsupportedError, errors.CompilerError)}
_LINES = 8


def call(what: str, job: Mapping[str, Any], folder: Path, failure: Path, timeout_s: float,
         memory_bytes: int | None = None) -> dict[str, Any]:
    """Runs a job of worker.py in folder, which is made for it, and returns its answer; the caller clears the folder.

    Args:
        what: to call it in a message. failure: where the folder goes when the job fails, log and all.

    Raises:
        UnsupportedError, EdgeForgeError: what the job itself refuses.
        ChildFailed: it crashed, hung or took too much memory; what it printed last stands in the message.
    """
    for stale in (folder, failure):
        shutil.rmtree(stale, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        (folder / JOB).write_text(json.dumps(job, indent=1) + "\n", encoding="utf-8")
        run = process.run_child([*WORKER, JOB], log=folder / LOG, timeout_s=timeout_s, memory_bytes=memory_bytes,
                                cwd=folder)
        return _answer(what, run, folder / RESULT, failure)
    except BaseException as error:
        failed.keep(folder, failure, error, {"memory_bytes": memory_bytes, "tools": limits.versions()})
        raise


def _answer(what: str, run: process.ChildRun, result: Path, failure: Path) -> dict[str, Any]:
    answer = _loaded(result)
    if "refused" in answer:
        refused = answer["refused"]
        raise _KINDS.get(refused["kind"], EdgeForgeError)(refused["message"], refused["hint"])
    if run.ok and "done" in answer:
        return dict(answer["done"])
    lines = tuple(run.log.strip().splitlines()[-_LINES:])
    ending = Ending(failed.kind(run), run.ending(), run.signal, lines)
    hint = _alone(failure) if ending.kind != "stopped" else ""
    raise ChildFailed(f"{what} {run.ending()}" + "".join(f"\n    {line}" for line in lines), ending, hint)


def _alone(failure: Path) -> str:
    return f"the log is {failure / LOG}; to run it alone: python -m {MODULE} {shlex.quote(str(failure / JOB))}"


def not_bisected(folder: Path) -> UnsupportedError | None:
    """What a person does with the failed job in folder, which is not cut down as a compiler's is; None: no job of ours
    lies there."""
    if not (folder / JOB).is_file():
        return None
    refused, (ending, _) = _loaded(folder / RESULT).get("refused"), failed.recorded(folder)
    if isinstance(refused, dict):
        return UnsupportedError(f"{folder}: this job is not cut down, for it named what it refused: "
                                f"{refused.get('message')}", f"{refused.get('hint') or 'change what it names'}; "
                                + _alone(folder))
    how = f" It {ending.words}." if ending is not None else ""
    return UnsupportedError(f"{folder}: jobs of Core ML are not cut down, only graphs before a vendor's compiler.{how}",
                            _alone(folder))


def _loaded(result: Path) -> dict[str, Any]:
    try:
        answer = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}
