"""A package written in a process of its own: coremltools prints, and takes gigabytes that it does not give back."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from dataclasses import replace
from pathlib import Path

from edgeforge import errors
from edgeforge.backends import process
from edgeforge.backends.coreml.job import JOB, LOG, RESULT, Job
from edgeforge.backends.coreml.sharing import Sharing
from edgeforge.errors import CompilerError, EdgeForgeError

WORKER = process.module_command("edgeforge.backends.coreml.worker")
_KINDS: dict[str, type[EdgeForgeError]] = {k.__name__: k for k in (errors.UnsupportedError, errors.CompilerError)}
_LINES = 8


def write(job: Job, timeout_s: float, memory_bytes: int | None = None) -> Sharing:
    """Writes the package that job asks for; a failure leaves none.

    Raises:
        UnsupportedError: something that the Neural Engine does not take (named).
        CompilerError: coremltools is not installed, crashed or hung; what it printed last stands in the message.
        EdgeForgeError: a file is missing or damaged, or the package is there already.
    """
    if importlib.util.find_spec("coremltools") is None:
        raise CompilerError("coremltools is not installed", 'pip install "edgeforge-toolchain[coreml]"')
    if job.package.exists():
        raise EdgeForgeError(f"{job.package} is there already", "remove it, or write to another place")
    with tempfile.TemporaryDirectory(dir=job.package.parent, prefix=".coreml-") as scratch:
        folder = Path(scratch)
        made = folder / job.package.name
        replace(job, package=made).save(folder / JOB)
        run = process.run_child([*WORKER, str(folder / JOB)], log=folder / LOG, timeout_s=timeout_s,
                                memory_bytes=memory_bytes, cwd=folder)
        result = folder / RESULT
        answer = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {}
        if "refused" in answer:
            refused = answer["refused"]
            raise _KINDS.get(refused["kind"], EdgeForgeError)(refused["message"], refused["hint"])
        if not run.ok or "sharing" not in answer:
            last = "".join(f"\n    {line}" for line in run.log.strip().splitlines()[-_LINES:])
            raise CompilerError(f"{job.package.name}: the Core ML emitter {run.ending()}{last}")
        made.rename(job.package)
        return Sharing(**answer["sharing"])
