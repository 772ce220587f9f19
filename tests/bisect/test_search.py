"""The search alone: any question, exact answers, few questions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeforge.bisect.search import Set, smallest


class Asked:
    """Fails when every culprit is in the set; counts the questions."""

    def __init__(self, culprits: set[int]) -> None:
        self.culprits, self.count = culprits, 0

    def __call__(self, chosen: Set) -> bool:
        assert chosen == tuple(sorted(chosen))
        self.count += 1
        return self.culprits <= set(chosen)


@given(st.integers(1, 200).flatmap(
    lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1, max_size=5))))
def test_exactly_the_culprits_are_left(case: tuple[int, set[int]]) -> None:
    size, culprits = case
    assert set(smallest(range(size), Asked(culprits))) == culprits


@pytest.mark.parametrize("culprit", [0, 1, 499, 511])
def test_one_culprit_takes_two_halvings(culprit: int) -> None:
    asked = Asked({culprit})
    assert smallest(range(512), asked) == (culprit,)
    assert asked.count <= 2 * math.log2(512) + 2


def test_two_neighbours_take_little_more() -> None:
    asked = Asked({300, 301})
    assert smallest(range(512), asked) == (300, 301)
    assert asked.count <= 2 * math.log2(512) + 4


def test_a_right_guess_saves_the_halving_and_a_wrong_one_costs_one_question() -> None:
    asked = Asked({7})
    assert smallest(range(512), asked, [7]) == (7,)
    assert asked.count == 1
    asked = Asked({7})
    assert smallest(range(512), asked, [9]) == (7,)


@given(st.integers(1, 60), st.randoms(use_true_random=False))
def test_a_question_without_rhyme_still_ends_with_a_set_that_failed(size: int, random: object) -> None:
    memory: dict[Set, bool] = {tuple(range(size)): True}

    def fails(chosen: Set) -> bool:
        return memory.setdefault(chosen, random.random() < 0.5)  # type: ignore[attr-defined]

    assert memory[smallest(range(size), fails)]
