"""Factors for the channels that a group of weights reads, from the Gram matrix of what it reads.

Weights that read x may read x / s instead when row j of each is multiplied by s_j. Rounding then loses less where x is
large, at the cost of wider steps for what shares them. The candidates are SmoothQuant's, s_j = |x_j|^a / max|w_j|^b
with b = 1 - a (Xiao et al., arXiv 2211.10438, with mean magnitudes for its peaks), and AWQ's, b = 0 (Lin et al.,
arXiv 2306.00978). Here as there rounding to nearest judges them, but exactly and over all tokens: with H = X'X an error
e of w costs e' H e (AWQ runs the layers once a candidate). s = 1 is always among them.

Rows of what makes x shrink by s_j, and a step of such a row with them: what rounding that row loses is the same
in x's own units. Groups can therefore be searched one by one, in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgeforge.quantize.weights.fit import widest
from edgeforge.quantize.weights.gram import Loss
from edgeforge.quantize.weights.grid import Grid

LIMIT = 16.0
"""most that a channel grows or shrinks: beyond, what is folded in (a norm's gain, 16 bits) has to span too much"""
_SILENT = 1e-6
"""share of the largest channel below which one counts as that much"""
CANDIDATES = tuple((a / 5, b) for a in range(1, 6) for b in ((0.0, 1 - a / 5) if a < 5 else (0.0,)))
"""(a, b), s = 1 apart"""


@dataclass(frozen=True)
class Reads:
    """What a group reads, over calibration tokens: X'X [n, n], mean and largest magnitude of each channel [n].

    tied: (k, g, d) with k * g * d = n when the g rows of each [k, g, d] share their factors, as query heads do that
    read one head of values.
    """

    gram: Tensor
    mean: Tensor
    peak: Tensor
    tied: tuple[int, int, int]


@dataclass(frozen=True)
class Scaling:
    """factors: s [k, d]. loss: the share of the outputs' power that rounding loses, summed over the group's weights;
    plain: the same with s = 1. noise: how much louder x's own rounding, on one grid for all channels, gets."""

    factors: Tensor
    loss: float
    plain: float
    noise: float


def search(weights: Sequence[tuple[Tensor, Grid]], reads: Reads, room: float) -> Scaling:
    """The factors with the least loss.

    Args:
        weights: [n, o] each, with the grid that it ships on. room: most `noise`.
    """
    (k, _, d), cost = reads.tied, Loss(reads.gram[None])
    best = plain = _loss(weights, cost, torch.ones_like(reads.mean))
    found = Scaling(torch.ones(k, d), plain, plain, 1.0)
    for a, b in CANDIDATES:
        factors = candidate(weights, reads, a, b)
        rows = spread(factors, reads.tied)
        noise = _noise(weights, reads.peak, rows)
        if noise > room:
            continue
        loss = _loss(weights, cost, rows)
        if loss < best:
            best, found = loss, Scaling(factors, loss, plain, noise)
    return found


def candidate(weights: Sequence[tuple[Tensor, Grid]], reads: Reads, a: float, b: float) -> Tensor:
    """|x|^a / max|w|^b, of geometric mean 1 before the few that exceed LIMIT are cut: [k, d]."""
    shape = reads.tied
    peaks = torch.stack([w.abs().amax(1) for w, _ in weights]).amax(0)
    grown = a * _log(reads.mean.view(shape).mean(1)) - b * _log(peaks.view(shape).amax(1))
    top = torch.tensor(LIMIT).log().item()
    return (grown - grown.mean()).clamp(-top, top).exp()


def _log(sizes: Tensor) -> Tensor:
    top = sizes.max()
    return (sizes / top).clamp_min(_SILENT).log() if top > 0 else torch.zeros_like(sizes)


def spread(factors: Tensor, tied: tuple[int, int, int]) -> Tensor:
    """[k, d] for every channel that is read, [n]."""
    return factors[:, None].expand(tied).reshape(-1)


def _loss(weights: Sequence[tuple[Tensor, Grid]], cost: Loss, rows: Tensor) -> float:
    """Sum over weights of e' H e / w' H w, both summed over outputs, e being what rounding s w loses of w."""
    total = 0.0
    for weight, grid in weights:
        power = float(cost(weight[None]).sum())
        if power > 0:
            grown = weight * rows[:, None]
            steps = widest(grown, grid)
            error = weight - steps.reals(steps.nearest(grown)) / rows[:, None]
            total += float(cost(error[None]).sum()) / power
    return total


def _noise(weights: Sequence[tuple[Tensor, Grid]], peak: Tensor, rows: Tensor) -> float:
    """A step of x's grid is in proportion to its peak, and channel j's rounding reaches the outputs by s_j w_j."""
    power = torch.stack([w.square().sum(1) for w, _ in weights]).sum(0)
    plain = peak.max() * power.sum().sqrt()
    return float((peak / rows).max() * (power * rows.square()).sum().sqrt() / plain) if plain > 0 else 1.0
