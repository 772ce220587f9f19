"""Children: their ending in words, their log's culprits, and that none is left behind."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from qnn_fixtures import pid_is_running

from edgeforge.backends.qnn.process import culprits, run_child, stop_all


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
    assert not [p for p in pids if pid_is_running(p)]


def test_culprits_name_the_operator_and_leave_out_its_shell() -> None:
    log = (
        "\x1b[1;31m2026-01-01 00:00:00.1 [E:onnxruntime:, a.cc:1 F] Unsupported nodes in QNN EP:"
        " { name: x.dq, type: DequantizeLinear }{ name: bad, type: Det }\x1b[m\n"
        "noise\n"
    )
    assert culprits(log) == ("Unsupported nodes in QNN EP: bad (Det)",)


def test_culprits_fall_back_to_the_last_lines() -> None:
    assert culprits("one\n\ntwo\n") == ("one", "two")
    assert culprits("") == ()


def test_stop_all_ends_children_of_other_threads(tmp_path: Path) -> None:
    """What a build does with the second compiler when the first one failed, or on Ctrl-C."""
    command = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(300)"]
    log = tmp_path / "log"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_child, command, log=log, timeout_s=300)
        while not (log.is_file() and log.read_text()):
            time.sleep(0.05)
        stop_all()
        assert "SIGKILL" in running.result(timeout=60).ending()
