"""What is known to leave the Neural Engine is found in a finished package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeforge.backends.coreml import mil, package
from edgeforge.backends.coreml.interpret import program
from edgeforge.backends.coreml.lint import lint, narrow


def _lint(path: Path, shape: tuple[int, ...], build: Any) -> list[str]:
    with mil.function({"x": (shape, mil.FLOAT16)}) as made:
        made.set_outputs([build(made.inputs["x"])])
    package.write({"main": made}, "main", path / "a.mlpackage", {})
    return lint(program.load(path / "a.mlpackage"))


def _conv(x: Any, scale: tuple[int, ...], outputs: int = 4) -> Any:
    data = np.ones((outputs, 8, 1, 1)).astype(mil.integers(4, True))
    weight = mil.mb.constexpr_blockwise_shift_scale(data=data, scale=np.ones(scale, np.float16), name="w")
    return mil.mb.conv(x=x, weight=weight, pad_type="valid", name="y")


@pytest.mark.parametrize(("shape", "build", "said"), [
    ((1, 8, 1, 4), lambda x: _conv(x, (4, 1, 1, 1)), []),
    ((1, 8, 1, 4), lambda x: _conv(x, (4, 2, 1, 1)),
     ["main: w: steps or tables of blocks of inputs, and one a channel is taken"]),
    ((1, 8, 1, 4), lambda x: _conv(x, (16385, 1, 1, 1), 16385),
     ["main: y: 16385 outputs of one product, and 16384 are taken"]),
    ((4,), lambda x: mil.mb.erf(x=x, name="y"), ["main: y: erf was not seen on the Neural Engine"]),
    ((4,), lambda x: mil.mb.cast(x=x, dtype="fp32", name="y"),
     ["main: y: cast was not seen on the Neural Engine", "main: y: float32"]),
    ((1, 1, 2, 2, 1), lambda x: mil.mb.mul(x=x, y=x, name="y"), []),
])
def test_what_speaks_against_it(shape: tuple[int, ...], build: Any, said: list[str], tmp_path: Path) -> None:
    assert _lint(tmp_path, shape, build) == said


@pytest.mark.parametrize(("last", "count"), [(32, 0), (31, 1), (1, 1)])
def test_short_rows_are_counted(last: int, count: int, tmp_path: Path) -> None:
    with mil.function({"x": ((1, 2, 1, last), mil.FLOAT16)}) as made:
        made.set_outputs([mil.mb.relu(x=made.inputs["x"], name="y")])
    package.write({"main": made}, "main", tmp_path / "a.mlpackage", {})
    assert narrow(program.load(tmp_path / "a.mlpackage")["main"]) == count


def test_tables_of_blocks_are_found_too(tmp_path: Path) -> None:
    codes = np.zeros((4, 8, 1, 1)).astype(mil.integers(4, False))
    for blocks, count in ((1, 0), (2, 1)):
        lut = np.zeros((2, blocks, 1, 1, 16, 1), np.float16)

        def build(x: Any, lut: np.ndarray = lut) -> Any:
            weight = mil.mb.constexpr_lut_to_dense(indices=codes, lut=lut, name="w")
            return mil.mb.conv(x=x, weight=weight, pad_type="valid", name="y")

        folder = tmp_path / str(blocks)
        folder.mkdir()
        assert len(_lint(folder, (1, 8, 1, 4), build)) == count

