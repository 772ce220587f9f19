"""Runs cases of one kind, one after another: `worker.py KIND FIRST COUNT FOLDER [KEEP]`; a line of JSON a finding.

A case passes when our code returns or raises one of its own errors, in time, within memory, with the folder as it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

from cases import KINDS, Kind

MEMORY = 768 << 20
"""bytes of address space that a case may take beyond what is loaded when the first one starts"""


class Hang(BaseException):
    """The alarm; no `except Exception` on the way swallows it."""


def ours() -> tuple[type[BaseException], ...]:
    """What our code may raise."""
    from edgeforge_runtime.errors import RunError

    from edgeforge.errors import EdgeForgeError

    return EdgeForgeError, RunError


def finding(kind: Kind, seed: int, folder: Path) -> str | None:
    """What is wrong with the case, or None. The folder must be empty, and is emptied."""
    place, scratch = folder / "case", folder / "tmp"
    for path in (place, scratch):
        path.mkdir()
    kind.write(seed, place)
    before = _listing(place)
    tempfile.tempdir, home = str(scratch), Path.cwd()
    os.chdir(place)
    try:
        with _alarm(kind.seconds):
            kind.read(place)
    except ours() as error:
        found = _told(str(error))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = next((f"{Path(f.filename).name}:{f.lineno}" for f in reversed(traceback.extract_tb(error.__traceback__))
                      if "/edgeforge" in f.filename), f"{last.filename}:{last.lineno}")
        found = f"{type(error).__name__} at {where}: {str(error)[:200]}"
    else:
        found = None
    finally:
        os.chdir(home)
        tempfile.tempdir = None
    left = {p for p, h in (_listing(place) | {f"tmp/{p}": h for p, h in _listing(scratch).items()}).items()
            if before.get(p) != h}
    shutil.rmtree(place)
    shutil.rmtree(scratch)
    return found or (f"left or changed {sorted(left)[:3]}" if left else None)


def _told(message: str) -> str | None:
    """A message is for a person: it says something, and not by the megabyte."""
    if not message.strip():
        return "an error without a message"
    return f"a message of {len(message)} characters: {message[:100]!r}" if len(message) > 20_000 else None


def _listing(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else "folder"
            for p in folder.rglob("*")}


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def ring(signum: int, frame: object) -> None:
        raise Hang(f"more than {seconds} s")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _limit_memory() -> None:
    with open("/proc/self/statm", encoding="ascii") as statm:
        loaded = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (loaded + MEMORY, loaded + MEMORY))


def main(name: str, first: int, count: int, folder: Path, keep: Path | None) -> None:
    """Tells each seed before it starts (so that a crash has a name) and each finding."""
    kind = KINDS[name]
    pristine = folder / "pristine"
    for file, content in kind.bases().items():
        (pristine / file).parent.mkdir(parents=True, exist_ok=True)
        (pristine / file).write_bytes(content)
    kind.read(pristine)  # undamaged it must be taken; and now everything is imported
    shutil.rmtree(pristine)
    _limit_memory()
    for seed in range(first, first + count):
        _tell({"seed": seed})
        found = finding(kind, seed, folder)
        if found and found.startswith(Hang.__name__):  # a machine may stall: what hangs, hangs again
            found = finding(kind, seed, folder)
        if found:
            _tell({"seed": seed, "found": found})
            if keep is not None:
                kind.write(seed, keep / f"{name}-{seed}")
    _tell({"done": count})


def _tell(row: dict[str, object]) -> None:
    _ANSWERS.write(json.dumps(row) + "\n")
    _ANSWERS.flush()


if __name__ == "__main__":
    _ANSWERS = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    sys.path.insert(0, str(Path(__file__).parents[2]))
    sys.path.insert(1, str(Path(__file__).parents[2] / "runtimes"))
    word = sys.argv[1:]
    main(word[0], int(word[1]), int(word[2]), Path(word[3]), Path(word[4]) if len(word) > 4 else None)
