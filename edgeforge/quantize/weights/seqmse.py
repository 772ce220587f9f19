"""The step of each block by search: SeqMSE's objective, exactly, from the Gram matrix.

AIMET's SeqMSE (aimet_torch sequential MSE, documented) runs the layer once a candidate step and keeps the one
whose output is nearest, each block of inputs by itself. That output error is e' H_bb e, with the block's own
part of H = X'X: here every candidate costs one small product, whatever the number of tokens, and the minimiser
is the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from edgeforge.quantize.weights import best_first
from edgeforge.quantize.weights.gram import Loss
from edgeforge.quantize.weights.grid import Grid, minmax


def shares(count: int, least: float, most: float) -> tuple[float, ...]:
    """count shares from least to most, evenly spaced."""
    return tuple(round(least + (most - least) * i / (count - 1), 9) for i in range(count))


CANDIDATES = shares(15, 0.4, 1.1)
"""shares of the step that clips nothing; steps below 0.4 of it are hardly ever best"""


def search(weight: Tensor, blocks: Tensor, grid: Grid, candidates: tuple[float, ...] = CANDIDATES) -> Tensor:
    """The best of the candidate steps for every block and output, [b, o].

    Args:
        weight: [n, o]. blocks: H_bb, [b, n / b, n / b]. candidates: shares of the min-max step.
    """
    parts = weight.view(len(blocks), -1, weight.shape[1])
    widest = minmax(weight, grid)
    if len(blocks) == 1:
        tried = torch.tensor(candidates)

        def error(columns: best_first.Columns, candidate: Tensor | int) -> Tensor:
            return rounding_error(parts[..., columns], widest[:, columns] * tried[candidate], grid)[0]

        chosen = best_first.search(blocks[0], len(candidates), weight.shape[1], error)
        return widest * tried[chosen]
    cost = Loss(blocks)
    best, chosen = torch.full_like(widest, torch.inf), widest
    for share in candidates:
        step = widest * share
        loss = cost(rounding_error(parts, step, grid))
        better = loss < best
        best, chosen = torch.where(better, loss, best), torch.where(better, step, chosen)
    return chosen


def rounding_error(parts: Tensor, step: Tensor, grid: Grid) -> Tensor:
    """What rounding to nearest loses: parts [b, s, o] on steps [b, o]."""
    scale = step[:, None]
    found = parts / scale
    grid.round_(found).mul_(scale)
    return torch.sub(parts, found, out=found)
