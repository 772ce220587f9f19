"""Finished folders: whole or not at all, one maker at a time, and seen to be what was made.

An artifact gets its place by one rename, after its gate has passed; a failed or killed stage leaves nothing.
Its stamp holds every file's size, time and sha256: the times let an unchanged build find it without reading
it, the hashes show damage before another stage reads it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from edgeforge_runtime import manifest
from edgeforge_runtime.errors import ManifestError
from edgeforge_runtime.typed import read_json
from filelock import FileLock, Timeout

from edgeforge import interrupt
from edgeforge.build import STAMP
from edgeforge.errors import EdgeForgeError

_MARK = ".edgeforge-"
"""in the name of a folder that is being made, before eight hex digits; nobody else's folder has it"""
_SHOWN = 50
"""characters of a bundle's name in that name: at most 200 of the 255 bytes that file systems take"""
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


def done(place: Path, key: str, locks: Path) -> bool:
    """Is the artifact of this key there? Judged by sizes and times.

    A file of another time is read, once: when it is sound, the stamp gets its time.
    """
    try:
        found = read_stamp(place)
        files = {name: _as_made(place / name, seen) for name, seen in found["files"].items()}
        if found["key"] != key or None in files.values():
            return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    if files != found["files"]:
        _renew(place, found, files, locks)
    return True


def _renew(place: Path, found: dict[str, Any], files: dict[str, Any], locks: Path) -> None:
    """Writes the files' times into the stamp, unless another build is at the folder; where it cannot be written,
    the files are read again next time.
    """
    with contextlib.suppress(OSError, ValueError, Timeout), _lock(place, locks).acquire(timeout=0), \
            _work(Path(os.path.realpath(place))) as work:
        if read_stamp(place) == found:
            (work / STAMP).write_text(json.dumps(found | {"files": files}, indent=1) + "\n", encoding="utf-8")
            (work / STAMP).replace(place / STAMP)


def damage(place: Path, under: str = "") -> str | None:
    """The first file of a finished folder whose contents are not what was made; None when all are.

    under: looks only at files whose names begin so. Only under the folder's lock is the answer final: without it,
    another build may be replacing the folder.
    """
    name = STAMP
    try:
        for name, seen in read_stamp(place)["files"].items():
            if name.startswith(under) and digest(place / name) != seen["sha256"]:
                return str(name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return str(name)
    return None


def declared(bundle: Path) -> set[str]:
    """The files that a bundle's targets run, relative to it: one that its chip alone can make may come later."""
    try:
        raw = manifest.read(bundle, manifest.FORMAT, manifest.PLAIN_FORMAT)
        targets = manifest.parse(bundle, raw, manifest.targets)
        return {p.file for t in targets.values() for g in t.graphs for p in g.parts}
    except ManifestError:
        return set()


def strangers(place: Path) -> list[str]:
    """Files in a finished folder that no build put there, and its manifest does not name."""
    ours = {STAMP, *read_stamp(place)["files"], *declared(place)}
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
    lock = _lock(place, locks)
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


def _lock(place: Path, locks: Path) -> FileLock:
    """One lock for a folder, whichever links lead to it."""
    return FileLock(locks / f"{hashlib.sha256(os.fsencode(os.path.realpath(place))).hexdigest()[:20]}.lock")


@contextlib.contextmanager
def whole(place: Path) -> Iterator[Path]:
    """A folder that becomes `place` by one rename when the block ends well, and vanishes when it does not.

    A place that is a symbolic link stays one: the folder that it leads to is replaced.
    """
    place = Path(os.path.realpath(place))
    with _disk(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        _sweep(place.parent)
        with _work(place) as work:
            yield work
            _replace(place, work)


def _replace(place: Path, work: Path) -> None:
    old = work.with_name(work.name + "-old")
    try:
        with _held(place, fcntl.LOCK_EX):  # the lock goes with the folder: nobody sweeps it under its new name
            if place.exists():
                place.replace(old)
            work.replace(place)
    finally:
        if old.exists() and not place.exists():
            old.replace(place)
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _work(place: Path) -> Iterator[Path]:
    """A new folder beside place: held while somebody works in it, gone afterwards."""
    with contextlib.ExitStack() as ends:
        with interrupt.deferred():
            work = _new(place, ends)
            ends.callback(shutil.rmtree, work, ignore_errors=True)
        yield work


def _new(place: Path, ends: contextlib.ExitStack) -> Path:
    while True:
        work = place.parent / f"{_prefix(place)}{secrets.token_hex(4)}"
        work.mkdir()
        ends.enter_context(_held(work, fcntl.LOCK_EX))
        if work.is_dir():  # else it was swept before it was held
            return work


def _prefix(place: Path) -> str:
    """How the names of folders made for place begin: short, where place's own name is all that a disk takes."""
    return f".{place.name[:_SHOWN]}{_MARK}"


@contextlib.contextmanager
def _held(folder: Path, how: int) -> Iterator[bool]:
    """Holds the system's lock over a folder and yields True; False: it is gone, another's, or has no such lock.

    The lock ends with its process, and is seen by every process of the machine, whatever container it is in.
    """
    descriptor, held = None, False
    try:
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, how)
            held = True
        yield held
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Removes what builds that were killed left half-made."""
    for path in folder.glob(f".*{_MARK}*"):
        if re.fullmatch(r"[0-9a-f]{8}(-old)?", path.name.rpartition(_MARK)[2]):
            with _held(path, fcntl.LOCK_EX | fcntl.LOCK_NB) as dead:
                if dead:
                    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _disk(place: Path) -> Iterator[None]:
    """A disk's refusals in words, whichever library met them and however it says so.

    `out` is blamed only for what happened at place; another file that vanished is named as what it is.
    """
    try:
        yield
    except EdgeForgeError:
        raise
    except Exception as error:
        full = re.search(_FULL, str(error)) is not None
        if not full and not isinstance(error, OSError):
            raise
        file, why = getattr(error, "filename", None), getattr(error, "strerror", None) or error
        if full:
            hint = "free disk space, or choose another `out`."
        elif _concerns(error, place):
            hint = "can `out` be written there?"
        else:
            hint = f"is {file} still as it was when the build began?" if file else "try again."
            file = file or type(error).__name__
        raise EdgeForgeError(f"{file or place}: {why}",
                             f"{hint} Finished stages stay cached, nothing half-made is left") from error


def _concerns(error: Exception, place: Path) -> bool:
    """Did the disk refuse something at place: the folder, what is made for it, or the folders that lead there?"""
    file = getattr(error, "filename", None)
    if not isinstance(file, str):
        return getattr(error, "errno", None) in (errno.EROFS, errno.EACCES)
    path = Path(file)
    return (path in (place, *place.parents) or path.is_relative_to(place)
            or file.startswith(str(place.parent / _prefix(place))))


def _seen(path: Path) -> dict[str, Any]:
    found = path.stat()
    return {"bytes": found.st_size, "mtime_ns": found.st_mtime_ns, "sha256": digest(path)}


def _as_made(path: Path, seen: dict[str, Any]) -> dict[str, Any] | None:
    """What the stamp should say of a sound file; None when it is not what was made."""
    found = path.stat()
    if found.st_size != seen["bytes"]:
        return None
    if found.st_mtime_ns == seen["mtime_ns"]:
        return seen
    return seen | {"mtime_ns": found.st_mtime_ns} if digest(path) == seen["sha256"] else None


def digest(path: Path) -> str:
    """sha256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
