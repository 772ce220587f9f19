"""One child process with a log, a deadline, a memory limit, and no survivors."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from edgeforge.backends import orphan
from edgeforge.memory import memory

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_MIB = 1 << 20
_DYING_S, _EVERY_S = 10.0, 0.1
_FREE_SHARE = 0.9
"""of the memory that is free at the start: the rest of the machine wants to live too"""

_MARK = "EDGEFORGE_CHILD"
"""environment: of one child and of all that it starts, wherever they end up in the tree of processes"""

Limit = Literal["time", "memory", "asked"]
"""asked: its group was stopped"""


@dataclass(frozen=True)
class ChildRun:
    """How a child ended.

    returncode is negative for a signal, None when it was stopped here (or never started); `stopped` says why.
    peak_bytes: resident memory of the child with everything below it, the largest sample.
    memory_bytes: the limit that it had; None: none.
    """

    returncode: int | None
    seconds: float
    log: str
    peak_bytes: int = 0
    memory_bytes: int | None = None
    stopped: Limit | None = None

    @property
    def ok(self) -> bool:
        return self.returncode == 0

    @property
    def signal(self) -> str:
        """'SIGSEGV', ... when a signal ended it that was not ours; else empty."""
        if self.returncode is None or self.returncode >= 0:
            return ""
        try:
            return signal.Signals(-self.returncode).name
        except ValueError:
            return f"signal {-self.returncode}"

    def ending(self) -> str:
        """In words: 'exited with code 1', 'was killed by SIGSEGV', ..."""
        seen = f"{self.peak_bytes // _MIB:,} MiB at its largest"
        if self.stopped == "asked":
            return f"was stopped after {self.seconds:.0f} s, because the job that it belongs to had ended"
        if self.stopped == "time":
            return f"did not finish within {self.seconds:.0f} s and was stopped ({seen})"
        if self.stopped == "memory":
            limit = f"{(self.memory_bytes or 0) // _MIB:,} MiB of memory"
            return f"needed more than its limit of {limit} and was stopped after {self.seconds:.0f} s ({seen})"
        if not self.signal:
            return f"exited with code {self.returncode}"
        memory = f" (often: the machine is out of memory; {seen})" if self.signal == "SIGKILL" else ""
        return f"was killed by {self.signal}{memory}"


class Group:
    """Children that are stopped together, from whichever threads they were started, or yet to be started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def stop(self) -> None:
        """Ends every child that runs, and lets no further one start: those calls come back with `stopped` "asked"."""
        with self._lock:
            self._closed = True
            for child in self._live:
                _kill_session(child)

    def _start(self, command: list[str], **options: Any) -> subprocess.Popen[bytes] | None:
        """None once the group was stopped. Under the lock, so that no child slips in between."""
        with self._lock:
            if self._closed:
                return None
            child = subprocess.Popen(command, **options)
            self._live.add(child)
            return child

    def _forget(self, child: subprocess.Popen[bytes]) -> bool:
        """Was the group stopped while it ran? From now on its number may belong to another process."""
        with self._lock:
            self._live.discard(child)
            return self._closed


def module_command(module: str) -> tuple[str, ...]:
    """Runs one of our modules here. -P: a file in the work folder must not shadow a package."""
    return (sys.executable, "-P", "-m", module)


def free_bytes() -> int:
    """Most memory that a child may take: nine tenths of what is free, in this container too."""
    return int(_FREE_SHARE * memory().free)


def allowance(memory_mb: int | None, at_once: int = 1) -> int:
    """What one of at_once children may take, in bytes: what the recipe says, or its share of what is free."""
    return memory_mb << 20 if memory_mb is not None else free_bytes() // at_once


def run_child(
    command: Sequence[str],
    *,
    log: Path,
    timeout_s: float,
    memory_bytes: int | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    group: Group | None = None,
) -> ChildRun:
    """Runs command to its end or to a limit; then nothing is left of it, nor of what it started with its environment.

    Args:
        command: one of our own workers also ends when this process is killed (orphan.py).
        log: gets stdout and stderr, mixed as they come.
        memory_bytes: most resident memory of the child and its children together; None: no limit. Resident,
            not address space (RLIMIT_AS): vendor libraries map far more than they touch.
        env: additions to this process's environment. LD_LIBRARY_PATH must come this way: the loader
            reads it once, at start.
        group: whose `stop` ends it too.
    """
    mark, group = uuid.uuid4().hex, group or Group()
    paths = [str(PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    merged = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONFAULTHANDLER": "1",
              orphan.PARENT: str(os.getpid()), _MARK: mark, **(env or {})}
    start = time.monotonic()
    with log.open("wb") as sink:
        child = group._start(list(command), stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, cwd=cwd,
                             env=merged, start_new_session=True)
        if child is None:
            return ChildRun(None, 0.0, "", memory_bytes=memory_bytes, stopped="asked")
        try:
            code, stopped, peak = _watch(child, start + timeout_s, memory_bytes)
        finally:
            closed = group._forget(child)
            _end(child, mark)
    if closed and code == -signal.SIGKILL:
        code, stopped = None, "asked"
    text = log.read_text(encoding="utf-8", errors="replace")
    return ChildRun(code, time.monotonic() - start, text, peak, memory_bytes, stopped)


def _watch(child: subprocess.Popen[bytes], deadline: float,
           memory_bytes: int | None) -> tuple[int | None, Limit | None, int]:
    """Waits for the child's end or its first limit: return code, limit, largest memory seen."""
    peak = 0
    while True:
        peak = max(peak, now := _resident(child.pid))
        if memory_bytes is not None and now > memory_bytes:
            return None, "memory", peak
        left = deadline - time.monotonic()
        if left <= 0:
            return None, "time", peak
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(min(left, _EVERY_S)), None, peak


def _resident(pid: int) -> int:
    """Resident bytes of a process and everything below it."""
    total = 0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # it ended since it was listed
                total += process.memory_info().rss
    return total


def _kill_session(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _end(child: subprocess.Popen[bytes], mark: str) -> None:
    """Kills the child's whole session and whatever it started that left the session, and sees them gone."""
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        family = psutil.Process(child.pid).children(recursive=True)
    _kill_session(child)
    _kill(family)
    child.wait()
    # SIGKILL returns before its target has died; a large one takes a while to give its memory back. And what was
    # orphaned when the child ended is no longer below it.
    deadline = time.monotonic() + _DYING_S
    while (left := [p for p in (*family, *_marked(mark)) if is_running(p)]) and time.monotonic() < deadline:
        _kill(left)
        time.sleep(0.02)


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _marked(mark: str) -> Iterator[psutil.Process]:
    """Processes of this machine that were started with this mark."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_MARK) == mark:
                yield process


def is_running(process: psutil.Process) -> bool:
    """False for a process that is gone, and for a dead one that nobody has collected yet."""
    try:
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False
