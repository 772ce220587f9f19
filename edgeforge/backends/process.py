"""One child process with a log, a deadline, a memory limit, and no survivors."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from edgeforge.backends import orphan
from edgeforge.memory import memory

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_MIB = 1 << 20
_LIVE: set[subprocess.Popen[bytes]] = set()
_DYING_S, _EVERY_S = 10.0, 0.1
_FREE_SHARE = 0.9
"""of the memory that is free at the start: the rest of the machine wants to live too"""

Limit = Literal["time", "memory"]


@dataclass(frozen=True)
class ChildRun:
    """How a child ended.

    returncode is negative for a signal, None when it was stopped here; `stopped` says at which limit.
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
        if self.stopped == "time":
            return f"did not finish within {self.seconds:.0f} s and was stopped ({seen})"
        if self.stopped == "memory":
            limit = f"{(self.memory_bytes or 0) // _MIB:,} MiB of memory"
            return f"needed more than its limit of {limit} and was stopped after {self.seconds:.0f} s ({seen})"
        if not self.signal:
            return f"exited with code {self.returncode}"
        memory = f" (often: the machine is out of memory; {seen})" if self.signal == "SIGKILL" else ""
        return f"was killed by {self.signal}{memory}"


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
) -> ChildRun:
    """Runs command to its end or to a limit; then nothing that it started is left.

    Args:
        command: one of our own workers also ends when this process is killed (orphan.py).
        log: gets stdout and stderr, mixed as they come.
        memory_bytes: most resident memory of the child and its children together; None: no limit. Resident,
            not address space (RLIMIT_AS): vendor libraries map far more than they touch.
        env: additions to this process's environment. LD_LIBRARY_PATH must come this way: the loader
            reads it once, at start.
    """
    paths = [str(PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    merged = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONFAULTHANDLER": "1",
              orphan.PARENT: str(os.getpid()), **(env or {})}
    start = time.monotonic()
    with log.open("wb") as sink:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=merged,
            start_new_session=True,
        )
        _LIVE.add(child)
        try:
            code, stopped, peak = _watch(child, start + timeout_s, memory_bytes)
        finally:
            _end(child)
            _LIVE.discard(child)
    text = log.read_text(encoding="utf-8", errors="replace")
    return ChildRun(code, time.monotonic() - start, text, peak, memory_bytes, stopped)


def stop_all() -> None:
    """Ends every child that is running now, from whichever thread it was started; their callers see SIGKILL."""
    for child in list(_LIVE):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)


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


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kills the child's whole session and anything below it that left the session, and sees them gone."""
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        family = psutil.Process(child.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    for process in family:
        with contextlib.suppress(psutil.Error):
            process.kill()
    child.wait()
    # SIGKILL returns before its target has died; a large one takes a while to give its memory back.
    deadline = time.monotonic() + _DYING_S
    while any(map(is_running, family)) and time.monotonic() < deadline:
        time.sleep(0.02)


def is_running(process: psutil.Process) -> bool:
    """False for a process that is gone, and for a dead one that nobody has collected yet."""
    try:
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False
