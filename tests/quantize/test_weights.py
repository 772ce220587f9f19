"""The searches for one weight, each against the objective it claims to minimise."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from edgeforge.quantize import quality
from edgeforge.quantize.quality import PRESETS
from edgeforge.quantize.weights import fit as fitting
from edgeforge.quantize.weights import gptq, lpbq, refine, seqmse, target
from edgeforge.quantize.weights.fit import Method, fit, scales
from edgeforge.quantize.weights.gram import Gram, Loss, Sum
from edgeforge.quantize.weights.grid import Grid, Steps, encoding, minmax
from edgeforge.sections import Candidates, Quantize

PER_CHANNEL, BLOCKS, LPBQ = Grid(4), Grid(4, 16), Grid(4, 16, lpbq=True)
HALF = Grid(4, 16, half=True)
GRIDS = [PER_CHANNEL, Grid(8), BLOCKS, LPBQ, HALF, Grid(8, half=True)]
BALANCED = PRESETS["balanced"]
MINMAX = Method("minmax", "nearest", 0, 0.0, False, False)


def inputs(seed: int, channels: int = 64, rank: int = 8) -> Tensor:
    """Correlated inputs: a few common causes and a little noise of each channel's own."""
    rng = torch.Generator().manual_seed(seed)
    common = torch.randn(400, rank, generator=rng) @ torch.randn(rank, channels, generator=rng)
    return common + 0.3 * torch.randn(400, channels, generator=rng)


def weights(seed: int, channels: int = 64, outputs: int = 12) -> Tensor:
    rng = torch.Generator().manual_seed(seed + 1)
    return torch.randn(channels, outputs, generator=rng) * torch.rand(channels, 1, generator=rng)


def lost(x: Tensor, w: Tensor, v: Tensor) -> float:
    return float((x.double() @ (w - v).double()).square().sum())


def undamped(x: Tensor) -> Gram:
    return Gram(x.T @ x, damp=0.0)


@pytest.mark.parametrize("grid", GRIDS)
def test_channels_that_are_always_zero_do_not_set_the_steps(grid: Grid) -> None:
    """Dead ReLU filters: their weights, twice as large as any other, cost what is read next to nothing."""
    x, w = inputs(11), weights(11)
    dead = torch.arange(3, 64, 7)
    x[:, dead] = 0
    large, none = w.clone(), w.clone()
    large[dead], none[dead] = 2 * w.abs().amax(0), 0
    method = dataclasses.replace(BALANCED, correction=0.0)
    losses = [lost(x, v, fitted.steps.reals(fitted.codes)) for v in (large, none)
              for fitted in [fit(v, Gram(x.T @ x), grid, method)]]
    assert losses[0] <= 2 * losses[1]


@pytest.mark.parametrize("grid", [PER_CHANNEL, BLOCKS])
def test_the_search_finds_what_running_every_candidate_finds(grid: Grid) -> None:
    """SeqMSE by its definition: each block of inputs through the layer, once a candidate."""
    x, w = inputs(3), weights(3)
    size = grid.size(len(w))
    step = seqmse.search(w, undamped(x).blocks(size), grid)
    widest = minmax(w, grid)
    for block, output in itertools.product(range(len(step)), range(w.shape[1])):
        rows = slice(block * size, (block + 1) * size)
        column = w[rows, output]
        outputs = []
        for share in seqmse.CANDIDATES:
            s = widest[block, output] * share
            codes = torch.clamp(torch.round(column / s), grid.low, grid.high)
            outputs.append(float((x[:, rows].double() @ (column - codes * s).double()).square().sum()))
        best = widest[block, output] * seqmse.CANDIDATES[int(np.argmin(outputs))]
        assert step[block, output] == pytest.approx(float(best), rel=1e-6)


def test_the_candidates_are_the_recipes() -> None:
    """What is tried by default lies 0.05 apart, and more of them never lose more."""
    usual = quality.method(Quantize(), decoder=True)
    assert usual == BALANCED
    assert usual.shares == tuple((40 + 5 * i) / 100 for i in range(15))
    assert usual.floats == tuple((75 + 5 * i) / 100 for i in range(8))
    theirs = quality.method(Quantize(candidates=Candidates(steps=20, least=0.05, most=1)), decoder=True)
    assert theirs.shares == tuple(i / 20 for i in range(1, 21))
    x, w = inputs(7), weights(7, outputs=100)
    coarse, fine = (Quantize(quality="fast", candidates=Candidates(steps=n, floats=m)) for n, m in ((3, 2), (57, 15)))
    for grid in (PER_CHANNEL, BLOCKS, LPBQ):
        made = [fit(w, undamped(x), grid, quality.method(options, decoder=True)).reals for options in (coarse, fine)]
        assert lost(x, w, made[1]) < 0.99 * lost(x, w, made[0])


def test_block_loss_is_the_output_error() -> None:
    x, e = inputs(1), weights(9)
    found = Loss(undamped(x).blocks(16))(e.view(4, 16, -1))
    for b in range(4):
        rows = slice(16 * b, 16 * b + 16)
        assert torch.allclose(found[b], (x[:, rows] @ e[rows]).square().sum(0), rtol=1e-3)


@pytest.mark.parametrize("size", [1, 100, 257, 300, 1100])
def test_the_upper_tiles_stand_for_the_whole(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    x, e = torch.randn(2, 40, size, generator=generator), torch.randn(size, 5, generator=generator)
    share = torch.rand(40, 1, generator=generator)
    total = Sum(size)
    for sample in x:
        total.add(sample * share, sample)
    whole = torch.einsum("stn,t,stm->nm", x, share[:, 0], x)
    assert torch.allclose(total.matrix, whole, rtol=1e-4, atol=1e-4)
    assert torch.allclose(Loss(whole[None])(e[None])[0], ((whole @ e) * e).sum(0), rtol=1e-4)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_lpbq_is_searched_on_its_own_grid(seed: int) -> None:
    """Better than the best real steps rounded to integers, near the best of all 16 integers, and 16 is used."""
    x, w = inputs(seed), weights(seed, outputs=200)
    blocks = undamped(x).blocks(16)
    cost = Loss(blocks)
    real = seqmse.search(w, blocks, LPBQ)
    made = lpbq.integers(w, blocks, real, LPBQ)
    assert torch.equal(made.factors.amax(0), torch.full((w.shape[1],), 16.0))
    assert torch.equal(made.factors, made.factors.round())
    assert made.factors.min() >= 1
    def loss(steps: Tensor) -> Tensor:
        return cost(seqmse.rounding_error(w.view(4, 16, -1), steps, LPBQ)).sum(0)
    top = real.amax(0, keepdim=True) / 16
    afterwards = loss(torch.clamp(torch.round(real / top), 1, 16) * top)
    assert (loss(made.blocks) <= afterwards * 1.0001).all()
    widest = minmax(w, LPBQ).amax(0, keepdim=True)
    exhaustive = torch.full((w.shape[1],), torch.inf)
    for share in (0.6, 0.7, 0.8, 0.9, 1.0):
        unit = widest * share / 16
        each = torch.stack([cost(seqmse.rounding_error(w.view(4, 16, -1), (k * unit).expand(4, -1), LPBQ))
                            for k in range(1, 17)])
        best = each.amin(0)
        exhaustive = torch.minimum(exhaustive, best.sum(0) + (each[15] - best).amin(0))
    assert float(loss(made.blocks).sum()) <= 1.02 * float(exhaustive.sum())


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_each_step_of_a_fit_lowers_the_loss(grid: Grid) -> None:
    x, w = inputs(5), weights(5)
    gram = undamped(x)
    nearest = fit(w, gram, grid, MINMAX)
    searched = fit(w, gram, grid, PRESETS["fast"])
    mended = fit(w, gram, grid, Method("search", "gptq", 0, 0.0, False, False))
    refined = fit(w, gram, grid, Method("search", "gptq", 2, 0.0, False, False))
    losses = [lost(x, w, f.reals) for f in (nearest, searched, mended, refined)]
    assert losses[1] < 0.99 * losses[0] or grid.bits == 8
    assert losses[2] < 0.9 * losses[1]
    assert losses[3] < losses[2]
    for f in (nearest, searched, mended, refined):
        assert torch.equal(f.codes, f.codes.round())
        assert ((f.codes >= grid.low) & (f.codes <= grid.high)).all()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), grid=st.sampled_from(GRIDS))
def test_refining_never_costs(seed: int, grid: Grid) -> None:
    x, w = inputs(seed), weights(seed)
    gram = undamped(x)
    steps = scales(w, gram, grid, PRESETS["fast"])
    codes = steps.nearest(w)
    before = lost(x, w, steps.reals(codes))
    moved = refine.descend(w, codes, steps, gram)
    between = lost(x, w, steps.reals(moved))
    assert between <= before * 1.0001
    better = refine.rescale(w, moved, steps, gram)
    assert lost(x, w, better.reals(moved)) <= between * 1.0001
    if grid.lpbq:
        assert torch.equal(better.factors.amax(0), torch.full((w.shape[1],), 16.0))


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_the_table_says_the_same(grid: Grid) -> None:
    """Rounding what the codes stand for, by the encoding alone, gives the codes again; in both layouts."""
    x, w = inputs(7), weights(7)
    found = fit(w, Gram(x.T @ x), grid, BALANCED)
    for outputs_axis, shape in ((0, (12, 64, 1, 1)), (1, (64, 12))):
        entry = encoding(found.steps, outputs_axis, 1 - outputs_axis, len(shape))
        flat = found.reals.T if outputs_axis == 0 else found.reals
        array = flat.numpy().reshape(shape)
        assert np.array_equal(entry.dequantize(entry.quantize(array)), array)
        laid = (found.codes.T if outputs_axis == 0 else found.codes).numpy().reshape(shape)
        assert np.array_equal(entry.quantize(array), laid)


def test_channels_that_are_zero_or_tiny() -> None:
    """Case C32: scales stay above 0, nothing becomes NaN, tiny rows keep their size."""
    x, w = inputs(11), weights(11)
    w[:, 0], w[:, 1] = 0.0, w[:, 1] * 1e-6
    x[:, 5] = 0.0
    for grid in GRIDS:
        made = fit(w, Gram(x.T @ x), grid, BALANCED)
        assert torch.isfinite(made.reals).all()
        assert (made.steps.blocks > 0).all()
        assert (made.reals[:, 0] == 0).all()
        if grid.bits == 8 and not grid.half:
            assert torch.allclose(made.reals[:, 1], w[:, 1], atol=float(w[:, 1].abs().max()) / 50)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000), grid=st.sampled_from([HALF, Grid(4, half=True), Grid(8, half=True)]),
       size=st.sampled_from([1.0, 1e-3, 1e-7]))
def test_half_steps_are_float16_and_cost_next_to_nothing(seed: int, grid: Grid, size: float) -> None:
    """What float16 holds to 11 bits moves a loss by hundredths; below its normal numbers it is coarse, and sound."""
    x, w = inputs(seed), weights(seed) * size
    gram = Gram(x.T @ x)
    made = fit(w, gram, grid, BALANCED)
    assert torch.equal(made.steps.blocks, made.steps.blocks.half().float())
    assert (made.steps.blocks > 0).all()
    whole = fit(w, gram, dataclasses.replace(grid, half=False), BALANCED)
    if size > 1e-6:
        assert lost(x, w, made.reals) <= 1.25 * lost(x, w, whole.reals)
    assert lost(x, w, made.reals) <= lost(x, w, 0 * w)


def test_inputs_that_were_never_there() -> None:
    w = weights(2)
    made = fit(w, Gram(torch.zeros(64, 64)), LPBQ, BALANCED)
    assert lost(torch.eye(64), w, made.reals) < 0.05 * float(w.square().sum())


@pytest.mark.parametrize("bits", [4, 8])
def test_a_weight_with_one_output(bits: int) -> None:
    """Case C13: a gate of one channel; elsewhere 4-bit packing left it an empty table of zero points."""
    x, w = inputs(4), weights(4, outputs=1)
    made = fit(w, Gram(x.T @ x), Grid(bits, 16 if bits == 4 else None, lpbq=bits == 4), BALANCED)
    assert made.codes.shape == (64, 1)
    assert lost(x, w, made.reals) < 0.05 * lost(x, w, 0 * w)


def test_outputs_in_pieces_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = inputs(6), weights(6)
    gram = Gram(x.T @ x)
    whole = fit(w, gram, LPBQ, BALANCED)
    monkeypatch.setattr(fitting, "_OUTPUTS", 5)
    pieces = fit(w, gram, LPBQ, BALANCED)
    assert torch.equal(whole.codes, pieces.codes)
    assert torch.allclose(whole.steps.blocks, pieces.steps.blocks, rtol=1e-5)


def test_gptq_against_its_definition() -> None:
    """One output, channel by channel, with the inverse of what is still open: no Cholesky factor, no blocks."""
    x, w = inputs(8, channels=20), weights(8, channels=20, outputs=1)
    gram, grid = Gram(x.T @ x), Grid(4)
    steps = scales(w, gram, grid, MINMAX)
    h, left = gram.matrix.double(), w[:, 0].double().clone()
    step, open_, wanted = float(steps.blocks[0, 0]), gram.order.tolist(), torch.zeros(20, dtype=torch.float64)
    while open_:
        i = open_[0]
        wanted[i] = torch.clamp(torch.round(left[i] / step), -8, 7)
        inverse = torch.linalg.inv(h[open_][:, open_])
        left[open_] -= (left[i] - wanted[i] * step) * inverse[0] / inverse[0, 0]
        open_ = open_[1:]
    assert torch.equal(gptq.codes(w, steps, gram)[:, 0].double(), wanted)


def test_a_corrected_target_makes_up_for_the_drift() -> None:
    x, w = inputs(12), weights(12)
    rng = torch.Generator().manual_seed(1)
    seen = x + 0.2 * torch.randn(x.shape, generator=rng) + 0.1 * x.roll(1, 1)
    gone = 0.3 * torch.randn(400, 12, generator=rng) + x @ (0.1 * w)
    gram = undamped(seen)
    wanted = x @ w + gone
    losses = []
    for share in (0.0, 0.25, 1.0):
        t = target.corrected(w, gram, seen.T @ (x - seen), seen.T @ gone, share)
        losses.append(float((seen @ t - wanted).square().sum()))
    best = float((seen @ torch.linalg.lstsq(seen, wanted).solution - wanted).square().sum())
    assert losses[0] > losses[1] > losses[2]
    assert losses[2] == pytest.approx(best, rel=1e-3)


def test_a_channel_that_is_next_to_nothing_makes_up_for_nobody() -> None:
    """Case C32: one input that rounds to nearly nothing would take a weight of hundreds to mend the rest."""
    x, w = inputs(12), weights(12)
    seen = x + 0.01 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    x[:, 3], seen[:, 3] = 1e-6, 1e-6 * torch.randn(400, generator=torch.Generator().manual_seed(2))
    t = target.corrected(w, undamped(seen), seen.T @ (x - seen), None, 0.25)
    assert (t.abs() <= 1.25 * w.abs().amax(0) + 1e-6).all()
    others = torch.arange(len(w)) != 3
    assert torch.allclose(t[others], w[others], atol=0.05)


def test_a_block_that_does_not_divide() -> None:
    with pytest.raises(ValueError, match="blocks of 16 do not divide 40 inputs"):
        scales(weights(1, channels=40), Gram(torch.eye(40)), BLOCKS, MINMAX)


def test_steps_spread_over_their_rows() -> None:
    steps = Steps(LPBQ, torch.tensor([[0.5]]), torch.tensor([[16.0], [2.0]]))
    assert steps.rows(4).flatten().tolist() == [8.0, 8.0, 1.0, 1.0]
