"""One child process with a log, a deadline, and no survivors; and what its log says went wrong."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

PACKAGE_ROOT = Path(__file__).resolve().parents[3]
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(r"^\S+ \S+ \[(?P<level>[VIWEF]):onnxruntime:[^\]]*\]\s*")
_CULPRIT = re.compile(
    r"Unsupported nodes in QNN EP|backendValidateOpConfig\(\) failed|fallback to CPU EP has been"
    r"|Failed to|QNN SetupBackend failed|err(or)? \d{4}|Error:",
    re.IGNORECASE,
)
# The HTP library's greeting, and faulthandler's stack: that is for the reader of the log.
_NOISE = re.compile(
    r'LIBNATIVE|^File ".*", line \d+ in|^Current thread 0x|^Extension modules:|^Fatal Python error|^\[INFO\]'
)
_NODE = re.compile(r"\{\s*name:\s*(.*?),\s*type:\s*(.*?)\s*\}")
_MAX_LINES, _MAX_NODES = 6, 12
_LIVE: set[subprocess.Popen[bytes]] = set()
_DYING_S = 10.0


@dataclass(frozen=True)
class ChildRun:
    """How a child ended. returncode is negative for a signal; None means the deadline passed."""

    returncode: int | None
    seconds: float
    log: str

    @property
    def ok(self) -> bool:
        return self.returncode == 0

    def ending(self) -> str:
        """In words: 'exited with code 1', 'was killed by SIGSEGV', ..."""
        if self.returncode is None:
            return f"did not finish within {self.seconds:.0f} s and was stopped"
        if self.returncode >= 0:
            return f"exited with code {self.returncode}"
        try:
            name = signal.Signals(-self.returncode).name
        except ValueError:
            name = f"signal {-self.returncode}"
        memory = " (often: out of memory)" if self.returncode == -signal.SIGKILL else ""
        return f"was killed by {name}{memory}"


def module_command(module: str) -> tuple[str, ...]:
    """Runs one of our modules here. -P: a file in the work folder must not shadow a package."""
    return (sys.executable, "-P", "-m", module)


def run_child(
    command: Sequence[str],
    *,
    log: Path,
    timeout_s: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> ChildRun:
    """Runs command to its end or to the deadline; then nothing that it started is left.

    Args:
        log: gets stdout and stderr, mixed as they come.
        env: additions to this process's environment. LD_LIBRARY_PATH must come this way: the loader
            reads it once, at start.
    """
    paths = [str(PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    merged = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONFAULTHANDLER": "1", **(env or {})}
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
            code: int | None = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(child)
            _LIVE.discard(child)
    return ChildRun(code, time.monotonic() - start, log.read_text(encoding="utf-8", errors="replace"))


def stop_all() -> None:
    """Ends every child that is running now, from whichever thread it was started; their callers see SIGKILL."""
    for child in list(_LIVE):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)


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


def readable(log: str) -> list[str]:
    """A log's lines without colours, times, stacks and greetings."""
    lines = [_PREFIX.sub("", _COLOUR.sub("", line)).strip() for line in log.splitlines()]
    return [line for line in lines if line and not _NOISE.search(line)]


def culprits(log: str) -> tuple[str, ...]:
    """The lines of a child's log that name what failed, each once.

    Falls back to the log's last lines when no known pattern is in it.
    """
    lines = readable(log)
    picked = (
        list(dict.fromkeys(_shorten(line) for line in lines if _CULPRIT.search(line))) or lines[-_MAX_LINES:]
    )
    # The cause comes first (an unsupported node), its consequences (a session that cannot start) last.
    return tuple(picked[:_MAX_LINES])


def _shorten(line: str) -> str:
    nodes = [f"{name} ({kind})" for name, kind in _NODE.findall(line)]
    if not nodes:
        return line[:400]
    # A unit is named with its DequantizeLinear/QuantizeLinear shell: the operator inside is the news.
    inner = [n for n in nodes if not n.endswith(("(DequantizeLinear)", "(QuantizeLinear)"))] or nodes
    rest = f" and {len(inner) - _MAX_NODES} more" if len(inner) > _MAX_NODES else ""
    return f"{line.split('{')[0].strip()} {', '.join(inner[:_MAX_NODES])}{rest}"
