from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from edgeforge_runtime.errors import LogitsError
from edgeforge_runtime.sampler import Sampler
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

rows = hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-1e4, 1e4, width=32))


@given(rows, st.integers(0, 99))
def test_greedy_is_the_first_maximum_below_the_limit(logits: Any, cut: int) -> None:
    limit = 1 + cut % logits.size
    assert Sampler().choose(logits, limit) == int(np.argmax(logits[:limit]))


@given(
    rows, st.floats(1e-3, 50), st.integers(0, 50), st.floats(1e-6, 1), st.integers(0, 9), st.integers(0, 99)
)
def test_choices_are_allowed_ones(
    logits: Any, temperature: float, top_k: int, top_p: float, seed: int, cut: int
) -> None:
    limit = 1 + cut % logits.size
    chosen = Sampler(temperature, top_k, top_p, seed).choose(logits, limit)
    assert 0 <= chosen < limit
    if top_k:
        assert (logits[:limit] > logits[chosen]).sum() < top_k
    scaled = logits[:limit].astype(np.float64) / temperature
    chances = np.exp(scaled - scaled.max())
    above = chances[chances > chances[chosen]].sum() / chances.sum()
    assert above < top_p + 1e-9


@given(rows, st.integers(0, 9))
def test_seeded(logits: Any, seed: int) -> None:
    one, two = (Sampler(1.5, 0, 0.9, seed) for _ in range(2))
    assert [one.choose(logits, logits.size) for _ in range(5)] == [
        two.choose(logits, logits.size) for _ in range(5)
    ]


def test_padded_vocabulary_is_never_sampled() -> None:
    logits = np.array([0, 1, 0, 99, 99], np.float32)
    sampler = Sampler(temperature=5.0)
    assert {sampler.choose(logits, 3) for _ in range(200)} == {0, 1, 2}
    assert Sampler().choose(logits, 3) == 1


def test_frequencies_follow_softmax() -> None:
    chances = np.array([0.5, 0.3, 0.15, 0.05])
    sampler = Sampler(temperature=1.0, seed=1)
    drawn = np.bincount([sampler.choose(np.log(chances), 4) for _ in range(8000)], minlength=4) / 8000
    np.testing.assert_allclose(drawn, chances, atol=0.02)


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.5, {0}), (0.51, {0, 1}), (0.8, {0, 1}), (0.81, {0, 1, 2}), (1.0, {0, 1, 2, 3})]
)
def test_top_p_keeps_the_fewest_that_reach_it(top_p: float, kept: set[int]) -> None:
    logits = np.log(np.array([0.5, 0.3, 0.125, 0.075]))
    sampler = Sampler(temperature=1.0, top_p=top_p)
    assert {sampler.choose(logits, 4) for _ in range(400)} == kept


@pytest.mark.parametrize("draw", [0.0, 1 - 2**-53, 1.0])
def test_draws_at_both_ends_are_safe(draw: float) -> None:
    """The tail of the sum must neither run off the list nor pick what has no chance."""
    logits = np.array([-np.inf, 0.0, 0.1, -np.inf, -2000.0])
    sampler = Sampler(temperature=1.0)
    sampler._random = type("Fixed", (), {"random": staticmethod(lambda: draw)})()
    assert sampler.choose(logits, 5) in (1, 2)


def test_forbidden_ids_are_never_drawn() -> None:
    logits = np.array([-np.inf, 0.0, -np.inf])
    assert {Sampler(100.0, seed=s).choose(logits, 3) for s in range(50)} == {1}


@pytest.mark.parametrize("bad", [[np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf], []])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_are_named(bad: list[float], temperature: float) -> None:
    with pytest.raises(LogitsError, match="no finite maximum"):
        Sampler(temperature).choose(np.array(bad), 2)


@pytest.mark.parametrize(
    "settings",
    [{"temperature": -1}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.1}, {"temperature": float("nan")}],
)
def test_settings_are_checked(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="need temperature"):
        Sampler(**settings)  # type: ignore[arg-type]
