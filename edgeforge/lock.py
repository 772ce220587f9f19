"""The lock of a bundle: all that it was made from, and the sha256 of every file that came of it.

Two builds from one lock, on one machine, give the same bytes for whatever EdgeForge itself writes: ONNX,
encodings, vectors, manifests. A vendor's compiler promises no such thing, and reports hold times: those files
are marked, and only their damage is noticed.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeforge_runtime.typed import read_json

from edgeforge import __version__, cache, gates, keys, source, targets
from edgeforge.build import DATA, HASHES, STAMP, Build
from edgeforge.errors import EdgeForgeError, GateError
from edgeforge.stages.plan import GRAPH_STAGES, STAGES, plan

FILE = "edgeforge.lock.json"
_FORMAT = "edgeforge-lock-1"
_LATER = {FILE, STAMP, gates.FILE}
"""written when the lock is, or after it"""
_ELSEWHERE: Any = {"model": True, "out": True, "calibrate": {"text"}, "quantize": {"encodings"}, "compile": True}
"""parts of a recipe that stand in the lock by contents, or change nothing"""
_SHOWN, _NAME = 5, 200


@dataclass(frozen=True)
class Verdict:
    """What `check` found: files that are not as locked, and what it saw that a build made here would have otherwise.

    It sees the model, the tools and EdgeForge's code; a recipe's own text and foreign encodings are not looked for.
    """

    files: int
    damaged: tuple[str, ...]
    drift: tuple[str, ...]


def inputs(job: Build) -> dict[str, Any]:
    """All that decides a build's bytes, known before it starts. Where things lie doesn't count; the model's name does,
    for graphs and files are called after it.
    """
    recipe = job.recipe
    return {
        "edgeforge": __version__, "python": platform.python_version(), "threads": job.threads,
        "recipe": recipe.model_dump(mode="json", exclude=_ELSEWHERE),
        "name": job.source.name, "model": job.source.fingerprint(), "text": keys.text(recipe),
        "encodings": keys.encodings(recipe),
        "tools": _tools(job), "code": _code(job),
    }


def save(job: Build, sources: Mapping[str, Path], bundle: Path, timed: Collection[str]) -> None:
    """Writes the lock of a finished bundle.

    Args:
        sources: the artifacts that the bundle was made from, by stage.
        timed: names of files that hold times.
    """
    vendors, ours = _made(job, sources, vendor=True), _made(job, sources, vendor=False)
    files = {}
    for path in sorted(p for p in bundle.rglob("*") if p.is_file()):
        name, digest = str(path.relative_to(bundle)), cache.digest(path)
        files[name] = {"bytes": path.stat().st_size, "sha256": digest,
                       "reproducible": digest not in vendors - ours and name not in timed}
    read = [sources[name] for name in ("text", "calibrate") if name in sources]
    data = read_json(read[0] / DATA) if read else {}
    data.pop(HASHES, None)
    facts = {"format": _FORMAT, "source": source.place(job.source), "revision": source.revision(job.source),
             "inputs": inputs(job), "data": data,
             "stages": {name: cache.read_stamp(path)["key"] for name, path in sources.items()}, "files": files}
    (bundle / FILE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> dict[str, Any]:
    """Reads a lock file, or the one in a bundle.

    Raises:
        EdgeForgeError: not there, or not a lock.
    """
    path = path / FILE if path.is_dir() else path
    try:
        raw = read_json(path)
    except FileNotFoundError as error:
        raise EdgeForgeError(f"there is no {path}", "every bundle that a build finished holds one") from error
    except (OSError, ValueError) as error:
        raise EdgeForgeError(f"{path} cannot be read: {error}", "take it from the bundle again") from error
    if not isinstance(raw, dict) or raw.get("format") != _FORMAT or not _well_formed(raw):
        raise EdgeForgeError(f"{path} is not a lock of format {_FORMAT}", "was it made by another EdgeForge?")
    return raw


def threads(lock: Mapping[str, Any]) -> int:
    """The number of threads of the locked build."""
    return int(lock["inputs"]["threads"])


def require_inputs(lock: Mapping[str, Any], job: Build) -> None:
    """EdgeForgeError when a build made now could not give what is locked."""
    if differ := list(_differences(lock["inputs"], inputs(job))):
        raise EdgeForgeError(f"{len(differ)} things are not as locked:" + _list(differ),
                             "restore them, or build without the lock")


def require_files(lock: Mapping[str, Any], bundle: Path) -> None:
    """GateError when a file that promises the same bytes has others."""
    made = load(bundle)["files"]
    names = {n for n, f in lock["files"].items() if f["reproducible"]} | {n for n, f in made.items()
                                                                         if f["reproducible"]}
    if differ := sorted(n for n in names if made.get(n, {}).get("sha256") != lock["files"].get(n, {}).get("sha256")):
        raise GateError(f"{len(differ)} of {len(names)} files are not as locked:" + _list(differ),
                        "the inputs are the locked ones: is this another machine, with other vector instructions?")


def check(bundle: Path) -> Verdict:
    """Is every file as locked, and what differs between the locked build and one made here?"""
    lock = load(bundle)
    damaged = [*_damaged(lock["files"], bundle)]
    locked = lock["inputs"]
    tools = keys.installed(locked.get("tools") or {})
    here = {"edgeforge": __version__, "python": platform.python_version(), "tools": tools}
    drift = [*_differences({k: locked.get(k) for k in here}, here), *_other_code(lock), *_other_model(lock)]
    return Verdict(len(lock["files"]), tuple(damaged), tuple(drift))


def _other_model(lock: Mapping[str, Any]) -> Iterator[str]:
    try:
        found = source.there(lock["source"])
        if found is not None and found.fingerprint() != lock["inputs"]["model"]:
            yield f"model: {lock['source']} holds other weights, config, tokenizer or samples now"
    except (EdgeForgeError, OSError) as error:  # of what lies there now: the bundle is no worse for it
        yield f"model: {error.message if isinstance(error, EdgeForgeError) else error}"


def _other_code(lock: Mapping[str, Any]) -> Iterator[str]:
    """The stages whose code is not what it was, as far as the lock says which code that is."""
    locked = lock["inputs"].get("code")
    try:
        backend = targets.chip(lock["inputs"]["recipe"]["target"]["chip"]).backend
    except (KeyError, TypeError, AttributeError, EdgeForgeError):
        return
    stages = GRAPH_STAGES if isinstance(lock["source"], dict) else STAGES
    if isinstance(locked, dict):
        yield from _differences(locked, {s.name: keys.code(s, backend) for s in stages if s.name in locked}, "code")


def _made(job: Build, sources: Mapping[str, Path], vendor: bool) -> set[str]:
    """sha256 of the files that vendors' tools, or EdgeForge, left in the artifacts."""
    return {seen["sha256"] for stage in plan(job.recipe) if stage.vendor is vendor and stage.name in sources
            for seen in cache.read_stamp(sources[stage.name])["files"].values()}


def _damaged(files: Mapping[str, Any], bundle: Path) -> Iterator[str]:
    for name, seen in files.items():
        path = bundle / name
        if not os.path.isfile(path):  # False also for a name that no file system takes
            yield f"{name[:_NAME]}: missing"
        elif path.stat().st_size != seen["bytes"]:
            yield f"{name}: {path.stat().st_size:,} bytes, locked {seen['bytes']:,}"
        elif cache.digest(path) != seen["sha256"]:
            yield f"{name}: other contents"
    there = {str(p.relative_to(bundle)) for p in bundle.rglob("*") if p.is_file()}
    yield from (f"{name}: not in the lock" for name in sorted(there - files.keys() - _LATER - cache.declared(bundle)))


def _differences(locked: Any, here: Any, where: str = "") -> Iterator[str]:
    if isinstance(locked, dict) and isinstance(here, dict):
        for key in sorted(locked.keys() | here.keys()):
            yield from _differences(locked.get(key), here.get(key), f"{where}.{key}" if where else str(key))
    elif locked != here:
        yield f"{where}: {_short(locked)} locked, {_short(here)} here"


def _short(value: Any) -> str:
    return value[:12] + "…" if isinstance(value, str) and len(value) == 64 else str(value)


def _list(lines: list[str]) -> str:
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return "".join(f"\n  {line}" for line in [*lines[:_SHOWN], *more])


def _tools(job: Build) -> dict[str, str | None]:
    found = (keys.versions(stage, job.chip.backend) for stage in plan(job.recipe))
    return {name: version for versions in found for name, version in versions.items()}


def _code(job: Build) -> dict[str, str]:
    return {stage.name: keys.code(stage, job.chip.backend) for stage in plan(job.recipe)}


def _well_formed(raw: Mapping[str, Any]) -> bool:
    parts = raw.get("inputs"), raw.get("files"), raw.get("stages")
    if not all(isinstance(part, dict) for part in parts) or not _is_place(raw.get("source")):
        return False
    tools = raw["inputs"].get("tools") or {}
    if not isinstance(tools, dict) or not all(isinstance(name, str) and name for name in tools):
        return False
    known = isinstance(raw["inputs"].get("threads"), int) and isinstance(raw["inputs"].get("model"), str)
    return known and all(isinstance(f, dict) and isinstance(f.get("sha256"), str) and isinstance(f.get("bytes"), int)
                         and isinstance(f.get("reproducible"), bool) for f in raw["files"].values())


def _is_place(raw: Any) -> bool:
    """What source.place writes: a path or a hub id, or the two files of a plain graph."""
    if isinstance(raw, dict):
        return raw.keys() == {"onnx", "calibration"} and all(isinstance(p, str) for p in raw.values())
    return isinstance(raw, str)
