"""The second judge, asked from the pipeline: Core AI in a process of its own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from edgeforge import errors
from edgeforge.backends import process
from edgeforge.backends.coreml import systems
from edgeforge.backends.coreml.coreai.job import JUDGE, LOG, VERDICT, Floats, Judge
from edgeforge.errors import CompilerError, EdgeForgeError
from edgeforge.gates import Check

WORKER = process.module_command("edgeforge.backends.coreml.coreai.worker")
LEAST_HALF_DB = 40.0
"""logits when Core AI computes in float16 on a CPU; in float32 the gate of the emitted package holds"""
_KINDS: dict[str, type[EdgeForgeError]] = {k.__name__: k for k in (errors.UnsupportedError, errors.CompilerError)}
_LINES = 8


def ask(job: Judge, timeout_s: float, memory_bytes: int | None = None) -> list[Check]:
    """Writes the assets that job asks for, executes each and compares; a failure leaves none of them.

    Raises:
        UnsupportedError: a weight's format that Core AI does not take.
        CompilerError: Core AI is not installed, crashed or hung; what it printed last stands in the message.
    """
    if why := systems.coreai():
        raise CompilerError(why, systems.INSTALL_COREAI)
    folder = next(iter(job.assets.values())).parent
    with tempfile.TemporaryDirectory(dir=folder, prefix=".coreai-") as scratch:
        place = Path(scratch)
        made: dict[Floats, Path] = {floats: place / floats / path.name for floats, path in job.assets.items()}
        for path in made.values():
            path.parent.mkdir()
        replace(job, assets=made).save(place / JUDGE)
        run = process.run_child([*WORKER, str(place / JUDGE)], log=place / LOG, timeout_s=timeout_s,
                                memory_bytes=memory_bytes, cwd=place)
        verdict = place / VERDICT
        answer = json.loads(verdict.read_text(encoding="utf-8")) if verdict.is_file() else {}
        if refused := answer.get("refused"):
            raise _KINDS.get(refused["kind"], EdgeForgeError)(refused["message"], refused["hint"])
        if not run.ok or "decibels" not in answer:
            last = "".join(f"\n    {line}" for line in run.log.strip().splitlines()[-_LINES:])
            raise CompilerError(f"Core AI {run.ending()}{last}")
        for floats, path in job.assets.items():
            made[floats].rename(path)
    return [check for floats, values in answer["decibels"].items() for check in _checks(floats, values)]


def _checks(floats: str, decibels: list[float]) -> Iterator[Check]:
    exact = floats == "float32"
    for name, db in zip(("prefill", "decode"), decibels, strict=True):
        yield Check(f"compile: {name} by Core AI in {floats} against the float graph", db, "dB",
                    None if exact else LEAST_HALF_DB, gate="emitted_db" if exact else "",
                    note="Apple's own runtime, on this CPU")
