"""Where 8-bit grids end: against the errors themselves, and in the quantize stage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from quant_graphs import parse
from test_budget_stage import made, wanted
from tiny_build import Built

from edgeforge import encodings
from edgeforge.calibrate import histogram
from edgeforge.calibrate.histogram import Histogram
from edgeforge.encodings import Table, per_tensor
from edgeforge.quantize import clip
from edgeforge.sections import Quantize

GRAPH = parse("y = Gather(w, i)", "int64[3] i", "float[3,2] y", w=np.ones((4, 2), np.float32)).graph


def heavy(kind: str) -> npt.NDArray[np.float32]:
    rng = np.random.default_rng(3)
    drawn = {"normal": rng.normal(size=50000), "laplace": rng.laplace(size=50000), "t3": rng.standard_t(3, 50000),
             "uniform": rng.uniform(-1, 3, 50000)}
    return drawn[kind].astype(np.float32)


def seen(values: npt.NDArray[np.float32]) -> Histogram:
    found = Histogram()
    for part in np.split(values, 10):
        found.see(part)
    return found


def error(values: npt.NDArray[np.float32], low: float, high: float) -> float:
    grid = per_tensor(low, high, 8, symmetric=True)
    return float(np.square(values - grid.dequantize(grid.quantize(values))).sum())


@pytest.mark.parametrize("kind", ["normal", "laplace", "t3", "uniform"])
def test_the_end_of_least_error(kind: str) -> None:
    """Among all ends: no other clip loses much less; and never more than the largest value does."""
    values = heavy(kind)
    found = seen(values)
    [(low, high)] = clip.clipped(GRAPH, {"past_key_0_out": found}, Quantize(ranges="mse")).values()
    whole = float(values.min()), float(values.max())
    losses = [error(values, whole[0] * s, whole[1] * s) for s in np.linspace(0.05, 1, 96)]
    assert error(values, low, high) <= 1.02 * min(losses)
    assert clip.expected_error(found, (low, high), 8, True) == pytest.approx(error(values, low, high), rel=0.05)
    assert high == whole[1] if kind == "uniform" else high < 0.95 * whole[1]


def test_one_in_ten_thousand_passes() -> None:
    values = heavy("t3")
    found = seen(values)
    [(low, high)] = clip.clipped(GRAPH, {"past_key_0_out": found}, Quantize(ranges="percentile")).values()
    assert (values > high).mean() == pytest.approx(1e-4, rel=0.5)
    assert (values < low).mean() == pytest.approx(1e-4, rel=0.5)


def test_tables_have_their_own_ends_when_they_have_8_bits() -> None:
    table = heavy("t3").reshape(-1, 2)
    graph = parse("y = Gather(w, i)", "int64[3] i", "float[3,2] y", w=table).graph
    found = clip.clipped(graph, {}, Quantize(ranges="mse", embedding=8))
    assert found["w"][1] < 0.9 * table.max()
    assert clip.clipped(graph, {}, Quantize(ranges="mse", embedding=16)) == {}
    assert clip.clipped(graph, {"past_key_0_out": seen(heavy("t3"))}, Quantize()) == {}
    assert clip.clipped(graph, {"past_key_0_out": seen(heavy("t3"))}, Quantize(ranges="mse", kv=16)) == {}


def test_the_stage_gives_caches_the_ends_that_were_chosen(built: Built, tmp_path: Path) -> None:
    found = histogram.load(built.artifact("calibrate"))
    assert set(found) == {f"past_{kind}_{i}_out" for kind in ("key", "value") for i in range(2)}
    """Caches lose the least with `mse`; what the model then answers is the gates' to judge."""
    scales, lost = {}, {}
    for how in ("minmax", "percentile", "mse"):
        wished = wanted(built, how, ranges=how)
        made(built, wished, tmp_path / how)
        table = Table.load(tmp_path / how / encodings.FILE)
        scales[how] = {n: float(table[n].scale) for n in found}
        lost[how] = {n: clip.expected_error(one, (-127 * scales[how][n], 127 * scales[how][n]), 8, True)
                     for n, one in found.items()}
        for name in found:
            assert encodings.equal(table[name], table[name.replace("_out", "_in")])
            assert int(table[name].zero_point) == 128
    for name, one in found.items():
        peak = max(-one.range[0], one.range[1])
        assert scales["minmax"][name] == pytest.approx(1.2 * peak / 127, rel=1e-5)
        assert scales["mse"][name] <= peak / 127 * 1.001
        assert scales["percentile"][name] <= peak / 127 * 1.001
        assert lost["mse"][name] <= min(lost["percentile"][name], lost["minmax"][name])
        assert lost["mse"][name] < 0.8 * lost["minmax"][name]
