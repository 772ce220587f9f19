"""A finished folder takes its place whole, and nothing of anybody else's goes with it."""

from __future__ import annotations

from pathlib import Path

from edgeforge import cache
from edgeforge.build import STAMP


def finished(place: Path, **files: str) -> Path:
    """A folder that a build made."""
    with cache.whole(place) as work:
        for name, text in files.items():
            (work / name).write_text(text)
        cache.stamp(work, {"key": "k"})
    return place


def test_a_folder_that_another_build_takes_away_is_damaged(tmp_path: Path) -> None:
    place = finished(tmp_path / "stage", model="weights")
    assert cache.damage(place) is None
    (place / "model").unlink()
    assert cache.damage(place) == "model"
    (place / STAMP).unlink()
    assert cache.damage(place) == STAMP
