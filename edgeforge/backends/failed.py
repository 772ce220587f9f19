"""What a vendor tool's failed job leaves behind: its folder, with the log and failure.json."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeforge.backends import process
from edgeforge.backends.ending import ChildFailed, Ending, Kind

FAILURE = "failure.json"
_STOPPED: dict[process.Limit, Kind] = {"time": "hung", "memory": "memory", "asked": "stopped"}


def kind(run: process.ChildRun) -> Kind:
    """Of a child that did not end well."""
    if run.stopped is not None:
        return _STOPPED[run.stopped]
    return "crashed" if run.signal else "refused"


def keep(partial: Path, failed: Path, error: BaseException, facts: Mapping[str, Any]) -> None:
    """Moves a job's folder to where failures lie; nothing is kept of one that was stopped, by its group or by Ctrl-C.

    Args:
        facts: what failure.json says beside the ending.
    """
    child = error if isinstance(error, ChildFailed) else None
    if not isinstance(error, Exception) or (child is not None and child.ending.kind == "stopped"):
        shutil.rmtree(partial)
        return
    failed.parent.mkdir(parents=True, exist_ok=True)
    if child is not None:
        ending = dataclasses.asdict(child.ending) | {"nodes": sorted(child.ending.nodes)}
        (partial / FAILURE).write_text(json.dumps({**facts, **ending}, indent=1) + "\n", encoding="utf-8")
    partial.replace(failed)


def recorded(failed: Path) -> tuple[Ending | None, int | None]:
    """How the job in this folder failed, and its memory limit; None where the folder does not say."""
    try:
        raw = json.loads((failed / FAILURE).read_text(encoding="utf-8"))
        ending = Ending(raw["kind"], raw["words"], raw["signal"], tuple(raw["lines"]), frozenset(raw["nodes"]))
        return ending, raw["memory_bytes"]
    except (OSError, ValueError, KeyError, TypeError):
        return None, None
