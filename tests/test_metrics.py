from __future__ import annotations

import math

import numpy as np
import pytest

from edgeforge import metrics
from edgeforge.metrics import LogitMeter


def test_sqnr_golden() -> None:
    reference = np.array([3.0, 4.0])
    assert metrics.sqnr_db(reference, np.array([3.0, 4.5])) == pytest.approx(20.0)       # 25 / 0.25
    assert metrics.sqnr_db(reference, np.array([0.0, 0.0])) == pytest.approx(0.0)
    assert metrics.sqnr_db(reference, np.array([-3.0, -4.0])) == pytest.approx(-6.0206, abs=1e-4)


def test_sqnr_edges() -> None:
    zero, one = np.zeros(3), np.ones(3)
    assert metrics.sqnr_db(one, one) == math.inf
    assert metrics.sqnr_db(zero, zero) == math.inf
    assert metrics.sqnr_db(zero, one) == -math.inf
    for bad in (np.nan, np.inf, -np.inf):
        assert metrics.sqnr_db(one, np.array([1, 1, bad])) == -math.inf
    assert metrics.sqnr_db(np.array([np.inf]), np.array([np.inf])) == -math.inf, "inf - inf is not agreement"
    with pytest.raises(ValueError, match=r"\(3,\) vs \(1, 3\)"):
        metrics.sqnr_db(one, one[None])


def test_sqnr_accumulates_in_float64() -> None:
    """In float32 the noise of one part in 10^9 vanishes."""
    reference = np.full(1 << 16, 1.0)
    assert metrics.sqnr_db(reference, reference + 1e-9) == pytest.approx(180, abs=0.1)


def test_centred_sqnr_does_not_see_what_softmax_does_not() -> None:
    logits = np.random.default_rng(0).normal(size=(4, 9))
    shifted = logits + np.array([[5.0], [-3.0], [0.0], [100.0]])
    meter = LogitMeter()
    meter.add(logits, shifted, np.array([0]))
    assert meter.result().centred_sqnr > 250
    assert meter.result().sqnr < 0


def test_the_worst_row_is_found_among_good_ones() -> None:
    reference = np.ones((2, 3, 4))
    actual = reference.copy()
    actual[0, 1] += 0.01
    actual[1, 2] += 0.1
    assert metrics.worst_row_sqnr_db(reference, actual) == (pytest.approx(20.0), 5)
    actual[0, 0, 0] = np.nan
    assert metrics.worst_row_sqnr_db(reference, actual) == (-math.inf, 0)


def test_log_softmax_does_not_overflow() -> None:
    np.testing.assert_allclose(np.exp(metrics.log_softmax(np.array([[1e4, 1e4, -1e4]]))), [[0.5, 0.5, 0.0]])


def test_logit_stats_golden() -> None:
    """Two tokens over two words: p = (3/4, 1/4) both times; q = (1/4, 3/4), then p."""
    p, q = np.log([0.75, 0.25]), np.log([0.25, 0.75])
    meter = LogitMeter()
    meter.add(np.stack([p, p]), np.stack([q, p]), np.array([0, 0]))
    stats = meter.result()
    assert stats.tokens == 2
    assert stats.kl == pytest.approx(0.5 * (0.75 * math.log(3) - 0.25 * math.log(3)))
    assert stats.flips == 0.5
    assert stats.ppl_reference == pytest.approx(4 / 3)
    assert stats.ppl == pytest.approx(math.sqrt(4 * 4 / 3))
    assert stats.ppl_ratio == pytest.approx(math.sqrt(3))
    assert stats.worst_token == 0
    assert stats.worst_token_sqnr == metrics.sqnr_db(p, q)


def test_windows_add_up_to_the_whole() -> None:
    rng = np.random.default_rng(1)
    reference, actual = rng.normal(size=(2, 12, 7))
    targets = rng.integers(0, 7, 11)
    whole, pieces = LogitMeter(), LogitMeter()
    whole.add(reference, actual, targets)
    for start in range(0, 12, 5):
        stop = min(start + 5, 12)
        pieces.add(reference[start:stop], actual[start:stop], targets[start:stop])
    a, b = whole.result(), pieces.result()
    assert a.worst_token == b.worst_token
    for name in ("sqnr", "centred_sqnr", "worst_token_sqnr", "kl", "flips", "ppl", "ppl_reference"):
        assert getattr(a, name) == pytest.approx(getattr(b, name)), name
    assert a.sqnr == pytest.approx(metrics.sqnr_db(reference, actual))
    centred = (x - x.mean(-1, keepdims=True) for x in (reference, actual))
    assert a.centred_sqnr == pytest.approx(metrics.sqnr_db(*centred))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_fails_every_figure(bad: float) -> None:
    reference = np.random.default_rng(2).normal(size=(3, 5))
    actual = reference.copy()
    actual[1, 2] = bad
    meter = LogitMeter()
    meter.add(reference, actual, np.array([0, 1, 2]))
    stats = meter.result()
    assert stats.worst_token == 1
    assert stats.flips == pytest.approx(1 / 3)
    assert stats.worst_token_sqnr == stats.sqnr == stats.centred_sqnr == -math.inf
    assert stats.kl == stats.ppl == stats.ppl_ratio == math.inf
    assert math.isfinite(stats.ppl_reference)


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(ValueError, match="no logits"):
        LogitMeter().result()
    meter = LogitMeter()
    meter.add(np.ones((1, 3)), np.ones((1, 3)), np.array([], int))
    with pytest.raises(ValueError, match="no logits"):
        meter.result()
