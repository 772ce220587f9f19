"""What both processes read: a folder with the cut graph, samples and settings. No import that AIMET's venv lacks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

BITS, CANDIDATES = 4, 20
"""AIMET's own default number of candidates: fractions of the min-max step, linear from 1/20 to 1"""
Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Job:
    """block: inputs that share an LPBQ step; None for one step an output channel."""

    block: int | None
    threads: int

    def save(self, folder: Path) -> None:
        (folder / "job.json").write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Job:
        return cls(**json.loads((folder / "job.json").read_text(encoding="utf-8")))


def save_feeds(folder: Path, samples: list[dict[str, Array]]) -> None:
    np.savez(folder / "feeds.npz", **{name: np.stack([s[name] for s in samples]) for name in samples[0]})  # type: ignore[arg-type]


def load_feeds(folder: Path) -> list[dict[str, Array]]:
    """Graph inputs by name, a sample each."""
    with np.load(folder / "feeds.npz") as archive:
        arrays = dict(archive)
    count = len(next(iter(arrays.values())))
    return [{name: array[i] for name, array in arrays.items()} for i in range(count)]


def save_spent(path: Path, spent: dict[str, float]) -> None:
    path.write_text(json.dumps(spent), encoding="utf-8")
