"""Finished folders: whole or not at all, one maker at a time, and seen to be what was made.

An artifact gets its place by one rename, after its gate has passed; a failed or killed stage leaves nothing.
Its stamp holds every file's size, time and sha256: the times let an unchanged build find it without reading
it, the hashes show damage before another stage reads it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from edgeforge_runtime.typed import read_json
from filelock import FileLock, Timeout

from edgeforge.build import STAMP
from edgeforge.errors import EdgeForgeError

_MARK = ".edgeforge-"
"""in the name of a folder that is being made, before the maker's process id; nobody else's folder has it"""
_FULL = "|".join([*map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)), r"requested and \d+ written"])
"""a full disk, in the words of the system and of numpy, which drops its error number"""


def stamp(folder: Path, facts: dict[str, Any]) -> None:
    """Writes the stamp over everything that lies in folder now."""
    files = {str(p.relative_to(folder)): _seen(p) for p in sorted(folder.rglob("*")) if p.is_file() and p.name != STAMP}
    (folder / STAMP).write_text(json.dumps(facts | {"files": files}, indent=1) + "\n", encoding="utf-8")


def read_stamp(folder: Path) -> dict[str, Any]:
    """The stamp of a finished folder."""
    found: dict[str, Any] = read_json(folder / STAMP)
    return found


def done(place: Path, key: str) -> bool:
    """Is the artifact of this key there? Judged by sizes and times; a file of another time is read."""
    try:
        found = read_stamp(place)
        return bool(found["key"] == key) and all(
            _same(place / name, seen) for name, seen in found["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def damage(place: Path) -> str | None:
    """The first file of a finished folder whose contents are not what was made; None when all are."""
    for name, seen in read_stamp(place)["files"].items():
        if not (place / name).is_file() or digest(place / name) != seen["sha256"]:
            return str(name)
    return None


def strangers(place: Path) -> list[str]:
    """Files in a finished folder that no build put there."""
    ours = {STAMP, *read_stamp(place)["files"]}
    return sorted(n for p in place.rglob("*") if not p.is_dir() and (n := str(p.relative_to(place))) not in ours)


def guard(out: Path) -> None:
    """Refuses to replace what no build made."""
    try:
        if not out.exists() or (out.is_dir() and not any(out.iterdir())):
            return
        own = strangers(out) if (out / STAMP).is_file() else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EdgeForgeError(f"{out} cannot be read: {error}", "choose another `out`, or move it away") from error
    if own is None:
        raise EdgeForgeError(f"{out} exists and is not an EdgeForge bundle", "choose another `out`, or move it away")
    if own:
        more = f" and {len(own) - 3} more" if len(own) > 3 else ""
        raise EdgeForgeError(f"{out} holds files that no build made: {', '.join(own[:3])}{more}",
                             "a build replaces the whole folder: move them out of it first")


@contextlib.contextmanager
def one_at_a_time(place: Path, locks: Path, wait: Callable[[], None]) -> Iterator[None]:
    """Holds the lock over place; calls wait when another process has it, and then waits."""
    lock = FileLock(locks / f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:20]}.lock")
    try:
        with _disk(locks):
            locks.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(Timeout):
                lock.acquire(timeout=0)
        if not lock.is_locked:
            wait()
            with _disk(locks):
                lock.acquire()
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def whole(place: Path) -> Iterator[Path]:
    """A folder that becomes `place` by one rename when the block ends well, and vanishes when it does not.

    Where place is a link, what it leads to is replaced, and the link stays.
    """
    place = Path(os.path.realpath(place))
    work = place.parent / f".{place.name}{_MARK}{os.getpid()}"
    old = work.with_name(work.name + "-old")
    try:
        with _disk(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            _sweep(place.parent)
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            yield work
            if place.exists():
                place.replace(old)
            work.replace(place)
    finally:
        if old.exists() and not place.exists():
            old.replace(place)
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _disk(place: Path) -> Iterator[None]:
    """A disk's refusals in words, whichever library met them and however it says so."""
    try:
        yield
    except EdgeForgeError:
        raise
    except Exception as error:
        full = re.search(_FULL, str(error)) is not None
        if not full and not isinstance(error, OSError):
            raise
        where = getattr(error, "filename", None) or place
        hint = "free disk space, or choose another `out`" if full else "can `out` be written there?"
        raise EdgeForgeError(f"{where}: {getattr(error, 'strerror', None) or error}",
                             f"{hint} Finished stages stay cached, nothing half-made is left") from error


def _sweep(folder: Path) -> None:
    """Removes what builds that were killed left half-made."""
    for path in folder.glob(f".*{_MARK}*"):
        owner = path.name.removesuffix("-old").rpartition(_MARK)[2]
        if owner.isdigit() and not _owns(int(owner), path):
            shutil.rmtree(path, ignore_errors=True)


def _owns(owner: int, path: Path) -> bool:
    """Does the process live that made path? Its number may have gone to a younger one."""
    try:
        return psutil.Process(owner).create_time() <= path.stat().st_ctime + 1
    except (psutil.NoSuchProcess, FileNotFoundError):
        return False


def _seen(path: Path) -> dict[str, Any]:
    found = path.stat()
    return {"bytes": found.st_size, "mtime_ns": found.st_mtime_ns, "sha256": digest(path)}


def _same(path: Path, seen: dict[str, Any]) -> bool:
    found = path.stat()
    if found.st_size != seen["bytes"]:
        return False
    return bool(found.st_mtime_ns == seen["mtime_ns"]) or digest(path) == str(seen["sha256"])


def digest(path: Path) -> str:
    """sha256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
