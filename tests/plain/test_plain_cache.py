"""What the cache of a plain build keeps, and for whom: the same in kind as a language model's, and quick to build."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from edgeforge import cache, pipeline, recipe
from edgeforge.pipeline import Event


def artifact(path: Path, stage: str) -> Path:
    """The only artifact of a stage in the cache beside the recipe's bundle."""
    (found,) = (path.parent / "out" / ".edgeforge" / stage).iterdir()
    return found


def bundle(path: Path) -> Path:
    return path.parent / "out" / "bundle"


def rebuilt(path: Path) -> dict[str, list[str]]:
    """Builds; the stages by what happened to them."""
    events: list[Event] = []
    pipeline.build(recipe.load(path), events.append)
    return {kind: [e.stage for e in events if e.kind == kind] for kind in ("cached", "damaged", "done")}


def flip(path: Path) -> None:
    """One bit of other contents; size and time stay."""
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_damage_that_another_build_mends_at_this_moment_is_mended_once(
        copied_cnn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(artifact(copied_cnn, "optimize") / "model.data")
    for place in (artifact(copied_cnn, "quantize"), bundle(copied_cnn)):
        shutil.rmtree(place)
    others: list[dict[str, list[str]]] = []
    real = cache.damage

    def seen_by_both(place: Path) -> str | None:
        found = real(place)
        monkeypatch.setattr(cache, "damage", real)
        others.append(rebuilt(copied_cnn))  # another whole build, between the look and the lock
        return found

    monkeypatch.setattr(cache, "damage", seen_by_both)
    mine = rebuilt(copied_cnn)
    assert (others[0]["damaged"], others[0]["done"]) == (["optimize"], ["optimize", "quantize", "bundle"])
    assert (mine["damaged"], mine["done"]) == ([], [])
