"""Equivalent scaling: the decoder computes what it did, and rounding to nearest loses what the search said it would."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quant_graphs import adapted
from test_transforms import EXACT_DB, MASSIVE, decibels, peaks_of

from edgeforge.calibrate import whole
from edgeforge.graph import edit
from edgeforge.quantize import equalize, outliers, rotate, scale_channels
from edgeforge.quantize.parameters import get, put, scale_outputs
from edgeforge.quantize.products import products
from edgeforge.quantize.scale_channels import Scaled, Skipped
from edgeforge.quantize.walk import Sample, Walk
from edgeforge.quantize.weights import channels
from edgeforge.quantize.weights.channels import LIMIT, Reads
from edgeforge.quantize.weights.fit import widest
from edgeforge.quantize.weights.grid import Grid

FAMILIES = ["llama-bias", "qwen2", "qwen3", "phi3", "gemma2", "granite"]
"""grouped heads of keys, biases, norms behind q and k, fused projections, norms of 1 + w and behind o and
down, factors on the stream"""
W4 = Grid(4)


def samples(made: tiny.Adapted, count: int = 4) -> list[Sample]:
    rng = np.random.default_rng(11)
    return [whole.feeds(made.decoder, rng.integers(3, made.decoder.vocab, 40), made.tables) for _ in range(count)]


def lopsided(family: str) -> tuple[tiny.Adapted, ir.Model]:
    """A decoder in which one channel of all that weights read is 50 times the others."""
    made, model = adapted(family)
    model = model.clone()
    for name, value in model.graph.initializers.items():
        if name.endswith(("input_layernorm.weight", "pre_feedforward_layernorm.weight")) or (
                name.endswith("post_attention_layernorm.weight") and family != "gemma2"):
            put(value, get(value) * np.where(np.arange(made.decoder.hidden) == 5, 50, 1))
    for mlp in outliers.mlps(model.graph):
        scale_outputs(mlp.up, np.where(np.arange(48) == 7, 50.0, 1.0))
    for output in model.graph.outputs:
        if str(output.name).startswith("past_value"):
            node, _ = equalize.pair(output)
            width = made.decoder.kv_heads * made.decoder.head_dim
            scale_outputs(node, np.where(np.arange(width) == 3, 50.0, 1.0))
    return made, model


def scaled(made: tiny.Adapted, model: ir.Model, values: bool = True, grid: Grid = W4
           ) -> tuple[list[Scaled], list[Skipped]]:
    grids = {p.name: grid for p in products(model.graph)}
    return scale_channels.scale(model, made.decoder, samples(made), grids, values, lambda _: None)


@pytest.mark.parametrize("family", FAMILIES)
def test_scaling_every_group_is_exact(family: str, tmp_path: Path) -> None:
    made, model = lopsided(family)
    copy = model.clone()
    done, left = scaled(made, copy)
    assert left == []
    assert len(done) == 4 * made.decoder.layers
    assert all(s.scaling.loss < s.scaling.plain * 0.8 for s in done)
    assert decibels(made, model, copy, tmp_path) >= EXACT_DB


def test_what_nothing_can_take_the_factors_from_is_left_with_a_reason(tmp_path: Path) -> None:
    made, model = lopsided("olmo2")  # its weights read the stream itself; the norms lie behind them
    copy = model.clone()
    done, left = scaled(made, copy)
    assert {s.weight.split(".")[-2] for s in done} == {"o_proj", "down_proj"}
    assert {s.weight for s in left} == {f"model.layers.{i}.{w}.weight" for i in (0, 1)
                                        for w in ("self_attn.q_proj", "mlp.gate_proj")}
    assert all("not by a norm or a projection" in s.reason for s in left)
    assert decibels(made, model, copy, tmp_path) >= EXACT_DB


def test_a_parameter_with_other_readers_is_left_alone() -> None:
    made, model = lopsided("llama")
    copy = model.clone()
    norms = [n for n in copy.graph if n.op_type == "RMSNormalization"]
    norms[2].replace_input_with(1, norms[0].inputs[1])
    _, left = scaled(made, copy)
    assert [s.weight for s in left] == [f"model.layers.{i}.self_attn.q_proj.weight" for i in (0, 1)]
    assert all("is shared" in s.reason for s in left)


@pytest.mark.parametrize(("op", "reason"), [
    ("Transpose", "read by other than weights of its own"),
    ("RMSNormalization", "the norm before it has other readers")])
def test_a_value_with_other_readers_is_left_alone(op: str, reason: str) -> None:
    made, model = lopsided("llama")
    copy = model.clone()
    value = next(n for n in copy.graph if n.op_type == op).outputs[0]
    edit.node_after(copy.graph[-1], "Relu", [value], "another", edit.known_dims(value))
    _, left = scaled(made, copy)
    assert left == [Skipped("model.layers.0.self_attn.q_proj.weight", reason)]


def test_it_stands_behind_all_other_transforms(tmp_path: Path) -> None:
    made, model = lopsided("llama-bias")
    copy = model.clone()
    rotate.rotate(copy, np.random.default_rng(3).normal(size=made.decoder.hidden))
    assert equalize.equalize(copy, made.decoder, peaks_of(equalize.watched(copy.graph, made.decoder), copy)) == []
    names = list(outliers.watched(copy.graph))
    assert outliers.split(copy, dict.fromkeys(names, MASSIVE)) == names
    biases = [copy.graph.initializers[f"model.layers.{i}.self_attn.v_proj.bias"] for i in (0, 1)]
    before = [get(b) for b in biases]
    done, left = scaled(made, copy, values=False)
    assert {(s.weight, s.reason) for s in left} == {
        (f"model.layers.{i}.self_attn.o_proj.weight", "equalize_kv scales the values") for i in (0, 1)}
    assert {s.weight.split(".")[-2] for s in done} >= {"q_proj", "down_proj"}
    np.testing.assert_array_equal([get(b) for b in biases], before)
    assert decibels(made, model, copy, tmp_path) >= EXACT_DB


@pytest.mark.parametrize("grid", [W4, Grid(4, 16, lpbq=True), Grid(8)])
def test_the_loss_that_was_promised_is_that_of_the_rewritten_graph(grid: Grid) -> None:
    made, model = lopsided("llama")
    copy = model.clone()
    done, _ = scaled(made, copy, values=False, grid=grid)
    promised = {s.weight: s.scaling for s in done}
    for graph, name in ((model.graph, "plain"), (copy.graph, "loss")):
        measured = _losses(graph, samples(made), grid)
        for weight, scaling in promised.items():
            if "q_proj" in weight or "down_proj" in weight:  # up's own rows count anew behind down's factors
                assert measured[weight] == pytest.approx(getattr(scaling, name), rel=2e-3)


def _losses(graph: ir.Graph, text: list[Sample], grid: Grid) -> dict[str, float]:
    """Share of the outputs' power that rounding to nearest loses, by a group's first weight, from the outputs."""
    walk, found = Walk(graph, text, both=False), {}
    for stop in walk.visit():
        x = torch.cat([stop.products[0].rows(values[stop.source]) for values in walk.quantized(stop.source)]).double()
        total = 0.0
        for product in stop.products:
            weight = product.matrix()
            steps = widest(weight, grid)
            error = (weight - steps.reals(steps.nearest(weight))).double()
            total += float((x @ error).square().sum() / (x @ weight.double()).square().sum())
        found[stop.products[0].name] = total
    return found


def reads_of(x: torch.Tensor, tied: tuple[int, int, int] | None = None) -> Reads:
    return Reads(x.T @ x, x.abs().mean(0), x.abs().amax(0), tied or (1, 1, x.shape[1]))


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), spread=st.floats(0, 3), room=st.sampled_from([0.5, 1.0, 2.0]),
       grid=st.sampled_from([W4, Grid(4, 16, lpbq=True), Grid(8)]),
       tied=st.sampled_from([(1, 1, 48), (2, 3, 8), (1, 4, 12)]), silent=st.booleans())
def test_the_choice_is_never_worse_and_is_what_it_says(seed: int, spread: float, room: float, grid: Grid,
                                                       tied: tuple[int, int, int], silent: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(64, 48, generator=generator) * torch.exp(spread * torch.randn(48, generator=generator))
    if silent:
        x[:, ::5] = 0
    weights = [torch.randn(48, outputs, generator=generator) for outputs in (16, 5)]
    found = channels.search([(w, grid) for w in weights], reads_of(x, tied), room)
    assert found.loss <= found.plain
    assert found.noise <= max(room, 1)
    assert found.factors.shape == (tied[0], tied[2])
    assert found.factors.min() >= 0.999 / LIMIT
    assert found.factors.max() <= 1.001 * LIMIT
    rows = channels.spread(found.factors, tied)
    for s, said in ((rows, found.loss), (torch.ones(48), found.plain)):
        assert _shares(x, weights, grid, s) == pytest.approx(said, rel=1e-3, abs=1e-9)


def _shares(x: torch.Tensor, weights: list[torch.Tensor], grid: Grid, s: torch.Tensor) -> float:
    """From outputs: x / s read by rounded s w, against x read by w."""
    total = 0.0
    for weight in weights:
        steps = widest(weight * s[:, None], grid)
        got = (x / s).double() @ steps.reals(steps.nearest(weight * s[:, None])).double()
        wanted = x.double() @ weight.double()
        total += float((got - wanted).square().sum() / wanted.square().sum())
    return total


def test_candidates_have_the_mean_of_one_and_rise_with_what_is_read() -> None:
    x = torch.randn(64, 48, generator=torch.Generator().manual_seed(0)) * torch.logspace(0, 1, 48)
    weights = [(torch.ones(48, 8), W4)]
    for a, b in channels.CANDIDATES:
        factors = channels.candidate(weights, reads_of(x), a, b)[0]
        assert float(factors.log().mean()) == pytest.approx(0, abs=1e-5)
        assert bool((factors.argsort() == x.abs().mean(0).argsort()).all())


@pytest.mark.parametrize(("grid", "least"), [(W4, 8.5), (Grid(4, 32, lpbq=True), 12.5), (Grid(8), 9.5)])
def test_a_massive_channel_is_where_it_wins(grid: Grid, least: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(512, 256, generator=generator)
    x[:, 17] *= 100
    weight = torch.randn(256, 64, generator=generator)
    found = channels.search([(weight, grid)], reads_of(x), 2.0)
    assert 10 * np.log10(found.plain / found.loss) >= least
    assert found.factors.argmax() == 17
    assert found.noise < 0.2  # and what is read gets a grid that fits the other channels


def test_silent_groups_and_weights_of_nothing_keep_their_channels() -> None:
    x, nothing = torch.zeros(8, 16), torch.zeros(16, 4)
    for weight in (torch.ones(16, 4), nothing):
        for read in (x, torch.ones(8, 16)):
            found = channels.search([(weight, W4)], reads_of(read), 2.0)
            assert (found.loss, found.noise) == (found.plain, 1.0)
            assert bool((found.factors == 1).all())


def test_gains_that_were_folded_away_come_back() -> None:
    made, model = lopsided("llama")
    copy = model.clone()
    rotate.rotate(copy)
    done, _ = scaled(made, copy)
    gains = {s.weight: s.scaling.factors.double().reshape(-1).numpy() for s in done if "q_proj" in s.weight}
    assert gains
    for weight, factors in gains.items():
        gain = edit.constant(copy.graph.initializers[weight.replace("self_attn.q_proj", "input_layernorm")])
        np.testing.assert_allclose(gain, 1 / factors, rtol=1e-6)
