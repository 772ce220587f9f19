"""Children: their ending in words, their limits, and that none is left behind."""

from __future__ import annotations

import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from edgeforge.backends.process import Group, free_bytes, is_running, run_child

EAT = "import time\nheld = []\nwhile True:\n    held.append(bytearray(b'x' * (16 << 20)))\n    time.sleep(0.02)\n"
"""16 MiB every 20 ms, all of it touched"""


def gone(pid: int) -> bool:
    return not (psutil.pid_exists(pid) and is_running(psutil.Process(pid)))


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import sys; sys.exit(3)", "exited with code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "out of memory"),
    ],
)
def test_ending_says_how_a_child_died(tmp_path: Path, code: str, words: str) -> None:
    run = run_child(python(code), log=tmp_path / "log", timeout_s=20)
    assert not run.ok
    assert words in run.ending()


def test_success_keeps_output_and_additions_to_the_environment(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['EXTRA']); print('err', file=sys.stderr)"
    run = run_child(python(code), log=tmp_path / "log", timeout_s=20, env={"EXTRA": "seen"})
    assert run.ok
    assert run.log.split() == ["seen", "err"]
    assert (tmp_path / "log").read_text() == run.log


def test_timeout_also_ends_grandchildren_that_left_the_session(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "one = subprocess.Popen(['sleep', '600'])\n"
        "two = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(one.pid, two.pid, flush=True); time.sleep(600)"
    )
    start = time.monotonic()
    run = run_child(python(code), log=tmp_path / "log", timeout_s=1.5)
    assert time.monotonic() - start < 10
    assert run.returncode is None
    assert "did not finish within" in run.ending()
    pids = list(map(int, run.log.split()))
    assert len(pids) == 2
    assert all(map(gone, pids))


def test_what_a_child_orphans_goes_with_it_at_a_normal_end_too(tmp_path: Path) -> None:
    """A daemon: in a session of its own, and below nobody once its parent has ended."""
    code = ("import subprocess, sys\n"
            "print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True)")
    run = run_child(python(code), log=tmp_path / "log", timeout_s=60)
    assert run.ok
    assert gone(int(run.log))


def test_a_group_that_was_stopped_starts_no_more(tmp_path: Path) -> None:
    """A compiler whose thread comes to its start just after the other one failed."""
    group = Group()
    group.stop()
    run = run_child(python("print('up')"), log=tmp_path / "log", timeout_s=60, group=group)
    assert (run.returncode, run.stopped, run.log, run.signal) == (None, "asked", "", "")
    assert run_child(python("print('up')"), log=tmp_path / "log", timeout_s=60, group=Group()).log == "up\n"


def test_a_stopped_group_ends_children_of_other_threads(tmp_path: Path) -> None:
    """What a build does with the second compiler when the first one failed, or on Ctrl-C."""
    group = Group()
    command = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(300)"]
    log = tmp_path / "log"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_child, command, log=log, timeout_s=300, group=group)
        while not (log.is_file() and log.read_text()):
            time.sleep(0.05)
        group.stop()
        run = running.result(timeout=60)
    assert (run.returncode, run.stopped) == (None, "asked")
    assert "the job that it belongs to had ended" in run.ending()


def test_a_child_over_its_memory_limit_is_stopped_with_its_numbers(tmp_path: Path) -> None:
    run = run_child(python(EAT), log=tmp_path / "log", timeout_s=60, memory_bytes=200 << 20)
    assert (run.returncode, run.stopped) == (None, "memory")
    assert 200 << 20 < run.peak_bytes < 600 << 20
    assert run.seconds < 30
    assert re.search(r"needed more than its limit of 200 MiB .*\(\d{3} MiB at its largest\)", run.ending())


def test_grandchildren_count_and_go_too(tmp_path: Path) -> None:
    code = ("import subprocess, sys, time\n"
            f"p = subprocess.Popen([sys.executable, '-c', {EAT!r}], start_new_session=True)\n"
            "print(p.pid, flush=True); time.sleep(600)")
    run = run_child(python(code), log=tmp_path / "log", timeout_s=60, memory_bytes=200 << 20)
    assert run.stopped == "memory"
    assert gone(int(run.log))


def test_a_child_within_its_limit_is_left_alone(tmp_path: Path) -> None:
    code = "import time; held = bytearray(b'x' * (64 << 20)); time.sleep(0.5)"
    run = run_child(python(code), log=tmp_path / "log", timeout_s=60, memory_bytes=400 << 20)
    assert run.ok
    assert 64 << 20 < run.peak_bytes < 200 << 20


def test_what_is_free_is_less_than_the_machine_has() -> None:
    assert 0 < free_bytes() < psutil.virtual_memory().total
