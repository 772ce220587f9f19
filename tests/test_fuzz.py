"""A few hundred damaged inputs of every kind in each run; `scripts/fuzz` does ten thousand."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

FUZZ = Path(__file__).parents[1] / "scripts" / "fuzz"
sys.path.insert(0, str(FUZZ))

import cases  # noqa: E402
import mutate  # noqa: E402
import worker  # noqa: E402

COUNTS = {"context-binary": 8, "vectors": 40, "bundle": 80, "recipe": 300, "table": 300}


@pytest.mark.parametrize("kind", cases.KINDS)
def test_damaged_input_is_refused_and_nothing_worse(kind: str, tmp_path: Path) -> None:
    count = str(COUNTS.get(kind, 150))
    command = [sys.executable, str(FUZZ), "--kind", kind, "--cases", count, "--keep", str(tmp_path)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert made.returncode == 0, made.stdout + made.stderr


@pytest.mark.parametrize("kind", ["recipe", "table", "onnx", "checkpoint"])
def test_a_seed_is_a_case(kind: str, tmp_path: Path) -> None:
    def content(folder: Path, seed: int) -> dict[str, bytes]:
        cases.KINDS[kind].write(seed, folder)
        return {p.name: p.read_bytes() for p in folder.iterdir()}

    assert content(tmp_path / "a", 7) == content(tmp_path / "b", 7)
    assert content(tmp_path / "c", 8) != content(tmp_path / "b", 7)


def _left(folder: Path) -> None:
    (folder / "half.tmp").write_text("x")


def _changed(folder: Path) -> None:
    (folder / "x.json").write_text("")


def _deep(folder: Path) -> None:
    _deep(folder)


def _stuck(folder: Path) -> None:
    while True:
        time.sleep(0.01)


def _refused(folder: Path) -> None:
    from edgeforge.errors import EdgeForgeError

    raise EdgeForgeError("x.json is damaged", "make it again")


def _mute(folder: Path) -> None:
    from edgeforge.errors import EdgeForgeError

    raise EdgeForgeError("")


@pytest.mark.parametrize(("read", "found"), [
    (lambda f: {}["x"], "KeyError"), (lambda f: bytearray(1 << 50), "MemoryError"), (_deep, "RecursionError"),
    (_left, "half.tmp"), (_changed, "x.json"), (_stuck, "Hang"), (_mute, "without a message"),
    (lambda f: sys.exit(3), "SystemExit"), (lambda f: f, None), (_refused, None),
])
def test_what_counts_as_worse(read: Callable[[Path], object], found: str | None, tmp_path: Path) -> None:
    kind = cases.Kind("probe", lambda: {"x.json": b"{}"}, lambda rng, bases: bases, read, 1, seconds=0.3)
    made = worker.finding(kind, 0, tmp_path)
    assert made is None if found is None else made is not None and found in made
    assert list(tmp_path.iterdir()) == []


def test_trees_and_bytes_are_damaged_in_many_ways() -> None:
    base = {"a": [1, 2, {"b": "text"}], "c": 0.5}
    trees = {mutate.dump(mutate.tree(Random(seed), base)) for seed in range(300)}
    raws = {mutate.binary(Random(seed), bytes(range(64)), (8, 16)) for seed in range(300)}
    assert len(trees) > 200
    assert len(raws) > 200
