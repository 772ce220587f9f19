"""scripts/bench/coreml.py: both sides of a row, on one small product."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[3] / "scripts" / "bench" / "coreml.py"
SPEC = importlib.util.spec_from_file_location("coreml_bench", SCRIPT)
assert SPEC is not None
assert SPEC.loader is not None
bench = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = bench
SPEC.loader.exec_module(bench)


@pytest.mark.parametrize(("index", "least"), [(0, 35), (1, 10)])
def test_a_row_of_the_table(index: int, least: float) -> None:
    """8 and 4 bits a channel; the packages of both are the same size."""
    torch.manual_seed(0)
    case = bench.Case("product", torch.randn(128, 64), torch.randn(512, 64), torch.randn(32, 64))
    theirs, ours = (bench._measure(make, bench.FORMATS[index], case) for make in (bench._theirs, bench._ours))
    assert theirs[0] > least
    assert ours[0] > theirs[0] - 0.5, "on what has no structure both round alike"
    assert ours[1] == pytest.approx(theirs[1], rel=0.1)
