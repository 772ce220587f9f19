"""Counts whose range doubles on the way, against numpy on all the data at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeforge.calibrate import histogram
from edgeforge.calibrate.histogram import BINS, Histogram
from edgeforge.quantize import clip

FLOATS = st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, 1.0, -1.0, 2.0, -4.0, 1024.0, 1e-30])
PIECES = st.lists(st.lists(FLOATS, min_size=1, max_size=20), min_size=1, max_size=8)


def of(*pieces: object) -> Histogram:
    made = Histogram()
    for piece in pieces:
        made.see(np.asarray(piece, np.float32))
    return made


@settings(max_examples=200)
@given(pieces=PIECES)
def test_in_pieces_as_at_once(pieces: list[list[float]]) -> None:
    made, whole = of(*pieces), np.concatenate([np.asarray(p, np.float32) for p in pieces]).astype(np.float64)
    assert made.range == (whole.min(), whole.max())
    peak = np.abs(whole).max()
    assert peak < made.limit
    assert made.limit <= max(2 * peak, 2.0**-59)
    edges = (np.arange(BINS + 1) - BINS // 2) * made.width
    np.testing.assert_array_equal(made.counts, np.histogram(whole, edges)[0])


@settings(max_examples=100)
@given(pieces=PIECES, share=st.floats(0, 1))
def test_quantiles_to_within_a_bin(pieces: list[list[float]], share: float) -> None:
    made, whole = of(*pieces), np.concatenate([np.asarray(p, np.float32) for p in pieces])
    low, high = (np.quantile(whole, share, method=m) for m in ("inverted_cdf", "higher"))
    assert low - made.width <= made.quantile(share) <= high + made.width


def test_nothing_and_what_is_not_finite() -> None:
    made = of([], [np.nan, np.inf], [1, 2])
    assert made.counts.sum() == 2
    assert made.range == (1, 2)
    with pytest.raises(ValueError, match="nothing"):
        Histogram().quantile(0.5)


def test_they_survive_the_disk(tmp_path: Path) -> None:
    wanted = {"past_value_0_out": of([1, -3]), "a/b": of([0.25])}
    histogram.save(tmp_path, wanted)
    found = histogram.load(tmp_path)
    assert set(found) == set(wanted)
    for name, one in wanted.items():
        np.testing.assert_array_equal(found[name].counts, one.counts)
        assert (found[name].limit, found[name].range) == (one.limit, one.range)
    histogram.save(tmp_path, {})
    assert histogram.load(tmp_path) == {}


def test_outliers_are_named() -> None:
    rng = np.random.default_rng(0)
    plain, odd = rng.normal(size=10000), rng.normal(size=10000)
    odd[7] = -400
    check = clip.outliers({"plain": of(plain), "odd": of(odd)})
    assert check.value == 1
    assert check.note.startswith("odd: 1")
    assert "plain" not in check.note
