"""What a float model is shown of calibration text: every token once, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from edgeforge_runtime.executors import open_executor
from edgeforge_runtime.executors.base import Arrays, Executor
from edgeforge_runtime.manifest import Graph, Manifest
from tiny_build import Built

from edgeforge import pipeline, recipe, source
from edgeforge.calibrate.observe import ObservingExecutor, Ranges
from edgeforge.graph import store
from edgeforge.stages import reading


class Watching:
    """The runtime's own executor, and what it was fed."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.rows: list[tuple[int, int]] = []
        """of each row of each call: its token, and how many columns it may look at"""

    def run(self, graph: Graph, feeds: Arrays) -> Arrays:
        seen = (feeds["attention_mask"][0, 0] == 0).sum(-1)
        self.rows += [(int(i), int(n)) for i, n in zip(feeds["input_ids"][0], seen, strict=True)]
        return self._inner.run(graph, feeds)

    def close(self) -> None:
        self._inner.close()


def window(length: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(length).integers(3, 512, length)


@pytest.mark.parametrize("length", [8, 32, 33, 64, 100, 250, 256])
def test_every_row_is_a_token_of_the_text(length: int, built: Built) -> None:
    """Of a context of 256 in chunks of 32."""
    folder = built.artifact("transform")
    wished = recipe.load(built.recipe)
    build = pipeline.start(wished, source.open_source(wished.model))
    executor = Watching(open_executor(Manifest.load(folder).targets["cpu"], folder, exact=True, threads=1))
    windows = [window(length), window(length)[::-1].copy()]
    reading.read(build, folder, windows, executor)
    assert executor.rows == [(int(i), n) for ids in windows for n, i in enumerate(ids, 1)]


def test_ranges_know_nothing_of_what_fills_a_chunk(built: Built, tmp_path: Path) -> None:
    """Whatever the padding token's row of the table holds: 40 tokens of text do not have it."""
    folder = built.artifact("transform")
    wished = recipe.load(built.recipe)
    build = pipeline.start(wished, source.open_source(wished.model))
    found = []
    for filler in (0, 10):
        model = store.load(folder)
        table = next(n for n in model.graph if n.op_type == "Gather" and n.inputs[0].is_initializer()).inputs[0]
        rows = table.const_value.numpy().copy()
        rows[Manifest.load(folder).model.pad] = filler
        table.const_value = ir.tensor(rows, name=table.name)
        (tmp_path / str(filler)).mkdir()
        ranges = Ranges()
        reading.read(build, folder, [window(40)], ObservingExecutor(model, ranges, tmp_path / str(filler), 1))
        found.append(ranges.seen)
    assert len(found[0]) > 50
    assert found[0] == found[1]
