"""Builds as a user starts them, and what is left of them."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import yaml
from tiny_build import Built

from edgeforge import pipeline, recipe
from edgeforge.pipeline import Event

TIMED = {"stage.json", "gate.json", "report.json", "report.html", "edgeforge.lock.json"}
"""files that hold times, or where something lay"""
COMPILERS = {"compile.log", "job.json", "result.json"}
"""the same of a compiler's job"""


def variant(built: Built, name: str, **changes: object) -> Path:
    """The built recipe with other settings and another bundle, over the same cache."""
    raw = yaml.safe_load(built.recipe.read_text(encoding="utf-8"))
    raw["out"] = str(built.cache.parent / name)
    for key, value in changes.items():
        raw[key] = {**raw.get(key, {}), **value} if isinstance(value, dict) else value
    path = built.recipe.parent / f"{name}.yaml"
    path.write_text(yaml.safe_dump(raw, allow_unicode=True), encoding="utf-8")
    return path


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "edgeforge", *map(str, words)]


def cli(*words: object, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=timeout, check=False)


def leftovers(folder: Path) -> list[Path]:
    """Half-made folders."""
    return list(folder.rglob(".*.edgeforge-*"))


def contents(folder: Path) -> dict[str, str]:
    """sha256 of every file that two builds must agree on."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        timed = path.name in TIMED | COMPILERS or path.name.endswith(".trace.json") or path.suffix == ".lock"
        if not timed:
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def rebuilt(path: Path) -> dict[str, list[str]]:
    """Builds; the stages by what happened to them."""
    events: list[Event] = []
    pipeline.build(recipe.load(path), events.append)
    return {kind: [e.stage for e in events if e.kind == kind] for kind in ("cached", "damaged", "done")}


def flip(path: Path) -> None:
    """One bit of other contents; size and time stay."""
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
