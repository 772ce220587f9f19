"""Block steps on the grid that ships: integers 1..16 times one float a channel, both searched together.

Searching real block steps and rounding them to integers afterwards (as AIMET does) is blind to what rounding
costs. Here the real optimum of each block only says where to look: for a few floats a channel, each block takes
the better of the two integers around it, judged by e' H_bb e on the real grid, and the channel takes the float
with the least sum over its blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from edgeforge.encoding import TOP
from edgeforge.quantize.weights.gram import Loss
from edgeforge.quantize.weights.grid import Grid, Steps
from edgeforge.quantize.weights.seqmse import rounding_error, shares

REACH = 0.75, 1.1
FACTORS = shares(8, *REACH)
"""a channel's float to try, in sixteenths of its largest block's best step; that block's integer is TOP, because HTP's
compiler takes a sixteenth of a channel's largest step for its float, and rounds all others to it"""


def integers(weight: Tensor, blocks: Tensor, real: Tensor, grid: Grid, factors: tuple[float, ...] = FACTORS) -> Steps:
    """The integer steps near real block steps [b, o]; weight [n, o], blocks H_bb [b, s, s]."""
    parts = weight.view(len(blocks), -1, weight.shape[1])
    cost = Loss(blocks)
    peak = real.amax(0, keepdim=True)
    top, largest = peak / TOP, real == peak
    best = torch.full_like(top, torch.inf)
    channel, chosen = top, torch.ones_like(real)
    for factor in factors:
        unit = top * factor
        below = torch.floor(real / unit)
        tried = [torch.where(largest, float(TOP), torch.clamp(below + up, 1, TOP)) for up in (0, 1)]
        losses = [cost(rounding_error(parts, k * unit, grid)) for k in tried]
        nearer = losses[1] < losses[0]
        whole = torch.where(nearer, losses[1], losses[0]).sum(0, keepdim=True)
        better = whole < best
        best = torch.where(better, whole, best)
        channel = torch.where(better, unit, channel)
        chosen = torch.where(better, torch.where(nearer, tried[1], tried[0]), chosen)
    return Steps(grid, channel, chosen)


def rounded(real: Tensor, grid: Grid) -> Steps:
    """Real block steps [b, o] brought to whole numbers, without a search."""
    channel = real.amax(0, keepdim=True) / TOP
    return Steps(grid, channel, torch.clamp(torch.round(real / channel), 1, TOP))
