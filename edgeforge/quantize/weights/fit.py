"""One weight's codes and steps: the searches in the order that a method names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from edgeforge.quantize.weights import gptq, lpbq, palette, refine, seqmse
from edgeforge.quantize.weights.gram import Gram
from edgeforge.quantize.weights.grid import Grid, Steps, minmax, shipped, steps_of
from edgeforge.quantize.weights.palette import Palette

_OUTPUTS = 8192
"""outputs treated at a time, so that an LM head fits in memory: each is a problem of its own"""


@dataclass(frozen=True)
class Method:
    """scales: where steps come from. rounding: how codes are found on them. refine: times that steps and codes
    are improved in turn afterwards. correction: share of `target.corrected`. importance: tokens count by what they
    mean to the output (importance.py). reconstruct: each block's steps are tuned together (reconstruct.py). shares:
    steps that the search tries (seqmse.py). floats: of a channel, in whole-number blocks (lpbq.py).
    """

    scales: Literal["minmax", "search"]
    rounding: Literal["nearest", "gptq"]
    refine: int
    correction: float
    importance: bool
    reconstruct: bool
    shares: tuple[float, ...] = seqmse.CANDIDATES
    floats: tuple[float, ...] = lpbq.FACTORS


@dataclass(frozen=True)
class Fitted:
    """codes: whole numbers, [n, o]."""

    codes: Tensor
    steps: Steps

    @property
    def reals(self) -> Tensor:
        """What the codes stand for, float32 [n, o]."""
        return self.steps.reals(self.codes.float())

    def small(self) -> Fitted:
        """The same with codes in as many bytes as they need."""
        return Fitted(self.codes.to(torch.int8 if self.steps.grid.bits <= 8 else torch.int32), self.steps)


def fit(weight: Tensor, gram: Gram, grid: Grid, method: Method) -> Fitted | Palette:
    """Codes and steps, or tables, for weight [n, o] (or for what it should stand for: see target.py). Tables come of a
    search of their own: method says how often it is gone through again, and whether errors are passed on."""
    if grid.palette is not None:
        return palette.fit(weight, gram, grid.bits, grid.palette, method.refine, method.rounding == "gptq")
    pieces = [_fit(part.contiguous(), gram, grid, method) for part in torch.split(weight, _OUTPUTS, 1)]
    return joined(pieces)


def joined(pieces: list[Fitted]) -> Fitted:
    """Fits of neighbouring outputs as one."""
    if len(pieces) == 1:
        return pieces[0]
    steps = [p.steps for p in pieces]
    whole = Steps(steps[0].grid, torch.cat([s.channel for s in steps], 1), torch.cat([s.factors for s in steps], 1))
    return Fitted(torch.cat([p.codes for p in pieces], 1), whole)


def _fit(weight: Tensor, gram: Gram, grid: Grid, method: Method) -> Fitted:
    steps = shipped(scales(weight, gram, grid, method))
    codes = gptq.codes(weight, steps, gram) if method.rounding == "gptq" else steps.nearest(weight)
    for _ in range(method.refine):
        steps = shipped(refine.rescale(weight, codes, steps, gram))
        codes = refine.descend(weight, codes, steps, gram)
    return Fitted(codes, steps)


def scales(weight: Tensor, gram: Gram, grid: Grid, method: Method) -> Steps:
    """Steps of weight [n, o] before any code is chosen."""
    if method.scales == "minmax":
        return widest(weight, grid)
    blocks = gram.blocks(grid.size(len(weight)))
    step = seqmse.search(weight, blocks, grid, method.shares)
    return lpbq.integers(weight, blocks, step, grid, method.floats) if grid.lpbq else steps_of(grid, step)


def widest(weight: Tensor, grid: Grid) -> Steps:
    """The smallest steps of weight [n, o] that clip nothing; LPBQ's are the nearest integers to them."""
    step = minmax(weight, grid)
    return lpbq.rounded(step, grid) if grid.lpbq else steps_of(grid, step)
