"""Finished stages by content: keys, and folders that appear whole or not at all.

An artifact lives in <cache>/<stage>/<key>/, where the key hashes everything it depends on: the artifacts it
was made from, the recipe's part that the stage reads, the stage's own code and the tools' versions. It gets
its place by one rename, after its gate has passed; a failed or killed stage leaves nothing.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

import edgeforge_runtime
import psutil

from edgeforge.build import STAMP, Build
from edgeforge.errors import EdgeForgeError, RecipeError
from edgeforge.recipe import Recipe
from edgeforge.stages.plan import Stage

_PACKAGE, _RUNTIME = Path(__file__).parent, Path(edgeforge_runtime.__file__).parent
_MARK = ".edgeforge-"
"""in the name of a folder that is being made, before the maker's process id; nobody else's folder has it"""
_CORE = ("artifact.py", "evaluate.py", "metrics.py", "targets.py", "checkpoint.py", "build.py", "encodings.py")


def sizes(folder: Path) -> dict[str, int]:
    """Every file's size: what the no-op path checks by stat."""
    return {str(p.relative_to(folder)): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}


def done(place: Path, key: str) -> bool:
    """Is the artifact of this key there, with every file as long as it was?"""
    try:
        stamp = json.loads((place / STAMP).read_text(encoding="utf-8"))
        return stamp["key"] == key and all((place / n).stat().st_size == s for n, s in stamp["files"].items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def key(stage: Stage, job: Build, keys: dict[str, str]) -> str:
    parts = stage.keys(job.recipe)
    facts = {
        "stage": stage.name, "needs": {name: keys[name] for name in stage.needs},
        "recipe": [p.model_dump(mode="json") if hasattr(p, "model_dump") else p for p in parts],
        "code": _code(stage), "tools": versions(stage), "threads": job.threads,
        "profile": repr(job.profile), "python": platform.python_version(),
        "source": job.source.fingerprint() if not stage.needs else None,
        "text": _text(job.recipe) if job.recipe.calibrate in parts else None,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _text(recipe: Recipe) -> str | None:
    path = recipe.calibrate.text
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path is not None else None
    except OSError as error:
        raise RecipeError(f"calibrate.text: {path}: {error.strerror}", "give the path of a UTF-8 text file") from error


def _code(stage: Stage) -> str:
    digest = hashlib.sha256()
    for path in (_RUNTIME, *(_PACKAGE / room for room in (*_CORE, *stage.rooms))):
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def versions(stage: Stage) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in ("edgeforge-runtime", *stage.tools):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def guard(out: Path) -> None:
    """Refuses to replace a folder that no build made."""
    if out.exists() and not (out / STAMP).is_file() and any(out.iterdir() if out.is_dir() else [out]):
        raise EdgeForgeError(f"{out} exists and is not an EdgeForge bundle", "choose another `out`, or move it away")


@contextlib.contextmanager
def whole(place: Path) -> Iterator[Path]:
    """A folder that becomes `place` by one rename when the block ends well, and vanishes when it does not."""
    work = place.parent / f".{place.name}{_MARK}{os.getpid()}"
    old = work.with_name(work.name + "-old")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _sweep(place.parent)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        yield work
        if place.exists():
            place.replace(old)
        work.replace(place)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "free disk space, or choose another `out`" if full else "can `out` be written there?"
        raise EdgeForgeError(f"{error.filename or place}: {error.strerror or error}",
                             f"{hint} Finished stages stay cached, nothing half-made is left") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Removes what builds that were killed left half-made."""
    for path in folder.glob(f".*{_MARK}*"):
        owner = path.name.removesuffix("-old").rpartition(_MARK)[2]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(path, ignore_errors=True)
