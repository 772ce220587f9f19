"""Builds that are interrupted, killed or not alone come to the same bytes in the end."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from builds import cli, command, contents, leftovers, variant
from tiny_build import Built

from edgeforge.stages.plan import STAGES

pytestmark = pytest.mark.slow
NAMES = [s.name for s in STAGES]
KILLS = 20
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's children would ignore it


def started(path: Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command("build", path, "--json"), stdout=pipe, stderr=pipe, text=True)


def test_two_builds_into_one_folder_take_turns(built: Built, tmp_path: Path) -> None:
    path = variant(built, "shared", out=str(tmp_path / "out" / "tiny"))
    both = [started(path) for _ in range(2)]
    ends = [child.communicate(timeout=300) for child in both]
    assert [child.returncode for child in both] == [0, 0], ends
    made = [json.loads(line)["stage"] for out, _ in ends for line in out.splitlines() if '"done"' in line]
    assert sorted(made) == sorted(NAMES)  # each stage once, by one or the other
    assert contents(tmp_path / "out" / "tiny") == contents(built.bundle)


def stopped_at(path: Path, stage: str, number: int) -> subprocess.CompletedProcess[str]:
    """A build that gets the signal as soon as it says that it begins the stage."""
    child = started(path)
    assert child.stdout is not None
    rows = []
    for line in child.stdout:
        rows.append(line)
        row = json.loads(line)
        if row.get("stage") == stage and row["event"] == "started":
            child.send_signal(number)
            break
    out, errors = child.communicate(timeout=120)
    return subprocess.CompletedProcess(child.args, child.returncode, "".join(rows) + out, errors)


def test_ctrl_c_in_each_stage_keeps_the_stages_before_it(built: Built, tmp_path: Path) -> None:
    path = variant(built, "stopped", out=str(tmp_path / "out" / "tiny"))
    for stage in NAMES:
        done = stopped_at(path, stage, signal.SIGINT)
        assert done.returncode == 130, (stage, done.stdout, done.stderr)
        assert "interrupted" in done.stderr
        assert "Traceback" not in done.stderr
        assert not leftovers(tmp_path / "out")
        assert not (tmp_path / "out" / "tiny").exists()
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert [r["stage"] for r in rows if r["event"] in ("cached", "done")] == NAMES[:NAMES.index(stage)]
    assert cli("build", path).returncode == 0
    assert contents(tmp_path / "out" / "tiny") == contents(built.bundle)


def test_a_build_killed_at_any_moment_comes_to_the_same_bytes(built: Built, tmp_path: Path) -> None:
    """Each kill hits a build that goes on from where the one before it died, with its own share of the time."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    moments = random.Random(seed)
    wanted = contents(built.bundle)
    path = variant(built, "killed", out=str(tmp_path / "out" / "tiny"))
    begun = time.perf_counter()
    assert cli("build", variant(built, "timed", out=str(tmp_path / "timed" / "tiny"))).returncode == 0
    whole = time.perf_counter() - begun
    killed = 0
    while killed < KILLS:
        child = started(path)
        try:
            child.wait(moments.uniform(0.1, 0.9) * whole)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            killed += 1
            continue
        assert child.returncode == 0, child.communicate()
        assert contents(tmp_path / "out" / "tiny") == wanted
        for entry in (tmp_path / "out" / ".edgeforge", tmp_path / "out" / "tiny"):
            subprocess.run(["rm", "-rf", str(entry)], check=True)
    assert cli("build", path).returncode == 0
    assert contents(tmp_path / "out" / "tiny") == wanted
    assert not leftovers(tmp_path / "out")
    assert not [p for p in psutil.process_iter() if str(tmp_path) in " ".join(p.cmdline())]  # no compiler goes on
