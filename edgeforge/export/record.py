"""Test vectors: what really went into and came out of a model's graphs, on real text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from edgeforge_runtime.executors.base import Arrays, Executor
from edgeforge_runtime.manifest import Graph
from edgeforge_runtime.session import Session

INPUTS, OUTPUTS = "inputs.npz", "outputs.npz"


@dataclass(frozen=True)
class Call:
    """One graph call: codes in, codes out."""

    ar: int
    inputs: Arrays
    outputs: Arrays


class Recorder:
    """An executor that remembers every call of the one it wraps."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.calls: list[Call] = []

    def run(self, graph: Graph, feeds: Arrays) -> Arrays:
        made = self._inner.run(graph, feeds)
        # The cache is written in place after each call, so its inputs have to be copied.
        self.calls.append(Call(graph.ar, {k: v.copy() for k, v in feeds.items()}, made))
        return made

    def close(self) -> None:
        self._inner.close()


def record(session: Session, recorder: Recorder, ids: npt.NDArray[np.int64], chunk: int, steps: int) -> list[Call]:
    """A prompt of two chunks and a few steps behind it; keeps the second chunk's call and the steps'.

    The second chunk, because a first one sees an empty cache and says nothing about the past.
    """
    for _ in session.score([int(t) for t in ids[: 2 * chunk]]):
        pass
    for token in ids[2 * chunk: 2 * chunk + steps]:
        session.step(int(token))
    wide = [c for c in recorder.calls if c.ar == chunk]
    return [wide[1], *(c for c in recorder.calls if c.ar == 1)]


def one_a_width(labels: Iterable[str]) -> list[str]:
    """The labels of one prefill call and the first decode call, widest first."""
    names = sorted(labels)
    return [next(n for n in names if not n.startswith("ar1_")), "ar1_0"]


def save(folder: Path, call: Call) -> None:
    """folder/inputs.npz and folder/outputs.npz, arrays by tensor name."""
    folder.mkdir(parents=True)
    save_arrays(folder / INPUTS, call.inputs)
    save_arrays(folder / OUTPUTS, call.outputs)


def load(folder: Path, ar: int) -> Call:
    return Call(ar, load_arrays(folder / INPUTS), load_arrays(folder / OUTPUTS))


def save_arrays(path: Path, arrays: Arrays) -> None:
    # np.savez takes names as keywords; "/" in a tensor's name is fine inside the archive.
    np.savez(path, **arrays)  # type: ignore[arg-type]


def load_arrays(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
