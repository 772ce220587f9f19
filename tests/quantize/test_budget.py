"""The choice of 8-bit weights: within the budget, nested, repeatable, near the best; and the search for a KL."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quant_graphs import adapted, parse, prefill, run
from test_sequential import samples

from edgeforge.errors import RecipeError
from edgeforge.metrics import log_softmax
from edgeforge.quantize import budget, exceptions, footprint, sensitivity, sequential, weight_grids
from edgeforge.quantize.budget import Choice
from edgeforge.quantize.products import products
from edgeforge.quantize.quality import PRESETS
from edgeforge.quantize.weights.grid import Grid
from edgeforge.sections import Quantize

LOSS = st.floats(0, 1)


@st.composite
def choices(draw: st.DrawFn) -> list[Choice]:
    found = []
    for i in range(draw(st.integers(1, 8))):
        count = draw(st.integers(1, 50))
        low, high = draw(LOSS), draw(LOSS)
        found.append(Choice(f"w{i}", count, (4 * count + 32, 8 * count + 32), (low, high)))
    return found


@settings(max_examples=200)
@given(made=choices(), rooms=st.tuples(st.integers(0, 1700), st.integers(0, 1700)), data=st.data())
def test_within_the_budget_nested_and_the_same_in_any_order(
        made: list[Choice], rooms: tuple[int, int], data: st.DataObject) -> None:
    ranking = budget.rank(made)
    assert ranking == budget.rank(data.draw(st.permutations(made)))
    less, more = (budget.affordable(ranking, room) for room in sorted(rooms))
    assert less <= more
    assert sum(c.added for c in ranking[:more]) <= max(rooms)
    if more < len(ranking):
        assert sum(c.added for c in ranking[:more + 1]) > max(rooms)
    losses = budget.left(made, ranking)
    assert losses == sorted(losses, reverse=True)
    assert losses[0] == pytest.approx(sum(c.loss[0] for c in made))


@settings(max_examples=100)
@given(made=choices(), room=st.integers(0, 1700))
def test_within_one_weight_of_the_best(made: list[Choice], room: int) -> None:
    """Against every subset there is."""
    ranking = budget.rank(made)
    gained = sum(c.gain for c in ranking[:budget.affordable(ranking, room)])
    best = max(sum(c.gain for c in some) for n in range(len(made) + 1) for some in itertools.combinations(made, n)
               if sum(c.added for c in some) <= room)
    assert best - gained <= max([c.gain for c in ranking], default=0) + 1e-9


@settings(max_examples=300)
@given(data=st.data(), floor=st.floats(0, 0.05), power=st.floats(0.3, 3), target=st.floats(1e-3, 1))
def test_a_kl_is_reached_in_four_fits_or_the_least_is_taken(
        data: st.DataObject, floor: float, power: float, target: float) -> None:
    """KL falls with the loss, by any power of it."""
    losses = sorted(data.draw(st.lists(st.floats(1e-3, 1), min_size=1, max_size=40)), reverse=True)
    asked: list[int] = []

    def measure(k: int) -> float:
        asked.append(k)
        return floor + losses[k]**power

    found = budget.search(losses, target, measure)
    assert len(asked) == len(set(asked)) <= budget.FITS
    assert found in asked
    met = [k for k in asked if floor + losses[k]**power <= target]
    assert found == min(met) if met else len(losses) - 1 in asked
    if floor + losses[-1]**power <= target:
        assert met
    if floor + losses[0]**power <= target:
        assert asked == [0]


def test_a_line_finds_the_spot() -> None:
    """KL in proportion to the loss: the third fit has it to a few weights of 200."""
    losses = [1 - k / 250 for k in range(200)]
    asked: list[int] = []

    def measure(k: int) -> float:
        asked.append(k)
        return 0.004 + 0.1 * losses[k]
    assert abs(budget.search(losses, 0.05, measure) - 135) <= 2, asked


def test_the_longest_pattern_counts() -> None:
    said = {"*": 16, "*.down_proj.weight": 8, "layers.1.*": 4, "layers.1.*.weight": 8}
    names = "a", "layers.0.down_proj.weight", "layers.1.down_proj.bias"
    assert [exceptions.bits(name, said) for name in names] == [16, 8, 4]
    assert exceptions.bits("b", {"a": 8}) is None
    for name in ("a[0]*", "x?[", "onnx::MatMul_3"):
        assert exceptions.bits(name, {exceptions.pattern(name): 8}) == 8
        assert exceptions.bits(name.replace("[", "0"), {exceptions.pattern(name): 8}) in (
            None if "[" in name else 8,)


def test_a_pattern_that_names_nothing_is_told_the_nearest() -> None:
    _, model = adapted("llama")
    with pytest.raises(RecipeError, match="no product's weight is called model.layers.0.mlp.down_prj.weight; the "
                                          "nearest is model.layers.0.mlp.down_proj.weight"):
        weight_grids.refuse_strangers(model.graph, Quantize(exceptions={"model.layers.0.mlp.down_prj.weight": 8}), "")


def test_exceptions_and_head_are_not_the_budgets() -> None:
    _, model = adapted("llama")
    options = Quantize(weights=4, block=16, exceptions={"*.o_proj.weight": 8, "model.layers.0.mlp.*": 4})
    grids, free = weight_grids.choose(model.graph, options, True), weight_grids.candidates(model.graph, options, True)
    assert grids["model.layers.1.self_attn.o_proj.weight"] == Grid(8)
    assert grids["model.layers.0.mlp.up_proj.weight"] == Grid(4, 16, lpbq=True)
    assert weight_grids.head(model.graph) not in free
    assert len(free) == 2 * 7 - 2 - 3
    assert set(free.values()) == {Grid(4, 16, lpbq=True)}


def windows(made: tiny.Adapted, count: int) -> list[dict[str, torch.Tensor]]:
    rng, first = np.random.default_rng(0), prefill(made)
    return [{n: torch.from_numpy(a) for n, a in (first | {
        "input_ids": rng.integers(3, made.decoder.vocab, (1, 16)).astype(np.int32)}).items()} for _ in range(count)]


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's."""
    return float(np.corrcoef(*(np.argsort(np.argsort(x)) for x in (a, b)))[0, 1])


@pytest.mark.parametrize(("family", "order"), [("llama", 0.95), ("qwen3", 0.95), ("gemma2", 0.75)])
def test_figures_are_the_kl_that_each_weight_alone_makes(family: str, order: float, tmp_path: Path) -> None:
    """In size and, what a choice is made by, in order."""
    made, model = adapted(family)
    feeds = windows(made, 12)
    grids = weight_grids.candidates(model.graph, Quantize(weights=4), True)
    found = sensitivity.choices(model, feeds, grids, True, lambda text: None)
    assert [c.name for c in found] == [p.name for p in products(model.graph) if p.name in grids]

    def logs(which: ir.Model, name: str) -> npt.NDArray[np.float64]:
        return log_softmax(np.concatenate([run(which, tmp_path / name, {n: t.numpy() for n, t in f.items()})["logits"]
                                           for f in feeds]))
    truth = logs(model.clone(), "float")
    measured = []
    for c in found:
        assert 0 < c.loss[1] < 0.05 * c.loss[0]
        copy = model.clone()
        sequential.quantize(copy, feeds, {c.name: grids[c.name]}, PRESETS["fast"], lambda text: None)
        measured.append(float((np.exp(truth) * (truth - logs(copy, c.name))).sum(-1).mean()))
    ratios = [c.loss[0] / kl for c, kl in zip(found, measured, strict=True)]
    assert rank_correlation([c.loss[0] for c in found], measured) > order
    assert 0.4 < min(ratios) < max(ratios) < 2.5, ratios
    assert 0.75 < np.median(ratios) < 1.33, ratios


@pytest.mark.parametrize("block", [None, 16])
def test_bits_are_those_of_the_weights_that_ship(block: int | None) -> None:
    made, model = adapted("llama")
    feeds = samples(made)
    grids = weight_grids.candidates(model.graph, Quantize(weights=4, block=block), True)
    found = sensitivity.choices(model, feeds, grids, True, lambda text: None)
    for index, wanted in enumerate((grids, {name: Grid(8) for name in grids})):
        fitted = sequential.quantize(model.clone(), feeds, wanted, PRESETS["fast"], lambda text: None)
        stored = {w.name: footprint.stored_bits(w.count, w.form) for w in fitted}
        assert stored == {c.name: c.stored[index] for c in found}


def test_without_tokens_it_is_the_share_of_the_outputs_that_is_lost() -> None:
    weight = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    model = parse("y = MatMul(x, w)", "float[5,8] x", "float[5,4] y", w=weight)
    feeds = [{"x": torch.randn(5, 8, generator=torch.Generator().manual_seed(i))} for i in range(4)]
    [found] = sensitivity.choices(model, feeds, {"w": Grid(4)}, False, lambda text: None)
    [fitted] = sequential.quantize(model, feeds, {"w": Grid(4)}, PRESETS["fast"], lambda text: None)
    assert found.loss[0] == pytest.approx(fitted.loss, rel=1e-4)
