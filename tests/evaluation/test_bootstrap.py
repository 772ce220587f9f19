"""Intervals that hold what they promise, and paired differences that see through hard and easy text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeforge.evaluation.bootstrap import Estimate, _tail, compare, estimate
from edgeforge.metrics import LogitMeter, Totals, figures


def mean(totals: Totals) -> Totals:
    """Of (value, 1) a window."""
    return totals[:, 0] / totals[:, 1]


def windows(values: np.ndarray) -> Totals:
    return np.stack([values, np.ones_like(values)], axis=1)


@pytest.mark.parametrize(("count", "least"), [(4, 0.82), (6, 0.92), (8, 0.92), (30, 0.92)])
def test_covers_the_truth_as_often_as_it_says(count: int, least: float) -> None:
    """Of 400 samples from a normal. All that 4 windows can say is their smallest and largest: 1 - 2 / 2**4."""
    rng = np.random.default_rng(1)
    hits = sum(found.low <= 3 <= found.high for found in (
        estimate(windows(rng.normal(3, 1, count)), mean) for _ in range(400)))
    assert least <= hits / 400 <= 0.99


def test_shrinks_with_the_number_of_windows() -> None:
    values = np.random.default_rng(2).normal(size=640)
    wide = [found.high - found.low for found in (estimate(windows(values[:n]), mean) for n in (10, 40, 160, 640))]
    for few, many in itertools.pairwise(wide):
        assert 1.5 < few / many < 3.2  # four times the windows, half the width


@settings(max_examples=40)
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20))
def test_lies_within_what_was_seen_and_is_the_same_twice(values: list[float]) -> None:
    found = estimate(windows(np.array(values)), mean)
    slack = 1e-9 * (1 + max(map(abs, values)))
    assert min(values) - slack <= found.low <= found.high <= max(values) + slack
    assert found.value == pytest.approx(np.mean(values), abs=1e-9)
    assert found == estimate(windows(np.array(values)), mean)


def test_one_window_has_no_interval() -> None:
    found = estimate(windows(np.array([2.0])), mean)
    assert found.value == 2
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert not found.excludes_zero


def test_equal_windows_leave_no_doubt() -> None:
    assert estimate(windows(np.full(5, 2.0)), mean) == Estimate(2, 2, 2)


def test_a_window_that_is_lost_spoils_the_upper_end_only() -> None:
    found = estimate(windows(np.array([1.0, 1.0, 1.0, math.inf])), mean)
    assert (found.value, found.low, found.high) == (math.inf, 1.0, math.inf)


@pytest.mark.parametrize(("count", "quantile"), [(4, 3.182), (6, 2.571), (11, 2.228), (31, 2.042)])
def test_the_level_is_widened_by_student_s_quantile(count: int, quantile: float) -> None:
    """Quantiles from the usual table."""
    from statistics import NormalDist

    wide = NormalDist().inv_cdf(1 - _tail(count, 0.95))
    assert wide == pytest.approx(math.sqrt(count / (count - 1)) * quantile, rel=0.01)


class TestCompare:
    @staticmethod
    def measured(noises: Sequence[float], count: int = 8, seed: int = 0) -> list[Totals]:
        """One model with each of noises, on the same windows; they differ in how hard they are."""
        rng = np.random.default_rng(seed)
        made: list[list[Totals]] = [[] for _ in noises]
        for index in range(count):
            reference = rng.normal(size=(24, 40)) * (1 + index)
            targets = rng.integers(0, 40, 23)
            for rows, noise in zip(made, noises, strict=True):
                meter = LogitMeter()
                meter.add(reference, reference + rng.normal(size=reference.shape) * noise, targets)
                rows.append(meter.totals)
        return [np.stack(rows) for rows in made]

    def test_sees_a_difference_that_the_single_intervals_hide(self) -> None:
        a, b = self.measured([0.5, 0.6])
        alone = [estimate(x, lambda t: figures(t)["kl"]) for x in (a, b)]
        assert alone[0].high > alone[1].low
        found = compare(a, b, "kl")
        assert found.excludes_zero
        assert found.high < 0
        assert found.value == pytest.approx(alone[0].value - alone[1].value)

    def test_sees_none_between_equals(self) -> None:
        a, b = self.measured([0.5, 0.5])
        assert not compare(a, b, "kl").excludes_zero
        assert compare(a, a, "ppl") == Estimate(0, 0, 0)

    def test_refuses_other_windows(self) -> None:
        (a,) = self.measured([0.5])
        with pytest.raises(ValueError, match="not of the same windows"):
            compare(a, a[:-1], "kl")


def test_figures_are_those_of_the_meter() -> None:
    rng = np.random.default_rng(3)
    whole, parts = LogitMeter(), []
    for _ in range(3):
        reference = rng.normal(size=(9, 20))
        piece = reference, reference + rng.normal(size=(9, 20)) / 3, rng.integers(0, 20, 8)
        whole.add(*piece)
        parts.append(LogitMeter())
        parts[-1].add(*piece)
    found = {name: float(value) for name, value in figures(np.stack([p.totals for p in parts]).sum(0)).items()}
    result = whole.result()
    assert found == pytest.approx({
        "ppl": result.ppl, "ppl_reference": result.ppl_reference, "ppl_ratio": result.ppl_ratio, "kl": result.kl,
        "flips": result.flips, "sqnr": result.sqnr, "centred_sqnr": result.centred_sqnr})
