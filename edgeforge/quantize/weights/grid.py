"""The grids a weight can ship on, and the steps chosen on one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from edgeforge.encodings import Encoding

TOP = 16
"""largest integer block scale of LPBQ: the channel's float scale is a sixteenth of its largest block's step"""
_FLOOR = 1e-9
"""smallest step: a channel of zeros keeps a positive scale"""


@dataclass(frozen=True)
class Grid:
    """What codes a weight may have.

    block: inputs that share one step; None for one step a channel. lpbq: block steps are integers 1..16 times one
    float a channel (low-power block quantization: int4 is expanded to int8 by integers on the accelerator).
    symmetric: zero is the code 0 of a signed grid; otherwise each step has a zero point of its own.
    """

    bits: int
    block: int | None = None
    lpbq: bool = False
    symmetric: bool = True

    @property
    def low(self) -> int:
        return -(1 << (self.bits - 1)) if self.symmetric else 0

    @property
    def high(self) -> int:
        return self.low + (1 << self.bits) - 1

    def size(self, inputs: int) -> int:
        """Inputs that share one step. ValueError when a block does not divide inputs."""
        size = self.block or inputs
        if inputs % size:
            raise ValueError(f"blocks of {size} do not divide {inputs} inputs")
        return size


@dataclass(frozen=True)
class Steps:
    """The steps of a weight [n, o] with b blocks: channel [1, o] * factors [b, o], and zero points [b, o]."""

    grid: Grid
    channel: Tensor
    factors: Tensor
    zero: Tensor

    @property
    def blocks(self) -> Tensor:
        """The step of every block, [b, o]."""
        return self.channel * self.factors

    def rows(self, inputs: int) -> Tensor:
        """The step of every weight, [inputs, o]."""
        return spread(self.blocks, inputs)

    def bounds(self, inputs: int) -> tuple[Tensor, Tensor]:
        """Smallest and largest code less its zero point, [inputs, o] or broadcastable to it."""
        if self.grid.symmetric:
            return torch.tensor(float(self.grid.low)), torch.tensor(float(self.grid.high))
        zero = spread(self.zero, inputs)
        return self.grid.low - zero, self.grid.high - zero

    def nearest(self, weight: Tensor) -> Tensor:
        """Codes less their zero points (whole numbers, float) of weight [n, o], rounded to nearest."""
        low, high = self.bounds(len(weight))
        return torch.clamp(torch.round(weight / self.rows(len(weight))), low, high)

    def reals(self, codes: Tensor) -> Tensor:
        """What codes [n, o] stand for."""
        return codes * self.rows(len(codes))


def steps_of(grid: Grid, blocks: Tensor, zero: Tensor | None = None) -> Steps:
    """Steps with float blocks [b, o] (one block: a step a channel)."""
    none = torch.zeros_like(blocks) if zero is None else zero
    if len(blocks) == 1:
        return Steps(grid, blocks, torch.ones_like(blocks), none)
    return Steps(grid, torch.ones_like(blocks[:1]), blocks, none)


def lpbq_steps(grid: Grid, channel: Tensor, integers: Tensor) -> Steps:
    """LPBQ steps: channel floats [1, o], integers [b, o] of which the largest of each channel must be 16.

    HTP's compiler takes a sixteenth of a channel's largest step for its float, and rounds all others to it.
    """
    return Steps(grid, channel, integers, torch.zeros_like(integers))


def spread(blocks: Tensor, inputs: int) -> Tensor:
    """[b, o] -> [inputs, o]."""
    return blocks if len(blocks) == 1 else blocks.repeat_interleave(inputs // len(blocks), 0)


def minmax(weight: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """The smallest step of each block [b, o] that clips nothing, and its zero point."""
    size = grid.size(len(weight))
    parts = weight.view(-1, size, weight.shape[1])
    high, low = parts.amax(1), parts.amin(1)
    if grid.symmetric:
        step = torch.maximum(high / grid.high, low / grid.low).clamp_min(_FLOOR)
        return step, torch.zeros_like(step)
    high, low = high.clamp_min(0), low.clamp_max(0)
    step = ((high - low) / grid.high).clamp_min(_FLOOR)
    return step, torch.round(-low / step)


def encoding(steps: Steps, channel: int, inputs_axis: int, rank: int) -> Encoding:
    """steps as the table's entry for a weight of that rank, whose outputs and inputs lie on those axes."""
    grid = steps.grid

    def laid(blocks: Tensor) -> np.ndarray:
        shape = [1] * rank
        shape[inputs_axis], shape[channel] = blocks.shape
        array = blocks.numpy() if inputs_axis < channel else blocks.T.numpy()
        return np.ascontiguousarray(array).reshape(shape)

    if grid.block is None:
        zero = steps.zero[0].numpy().astype(np.int64)
        return Encoding(grid.bits, grid.symmetric, steps.blocks[0].numpy().astype(np.float32), zero, channel)
    zeros = laid(steps.zero).astype(np.int64)
    if grid.lpbq:
        return Encoding(grid.bits, True, steps.channel[0].numpy().astype(np.float32), zeros, inputs_axis, grid.block,
                        laid(steps.factors).astype(np.int64), channel)
    return Encoding(grid.bits, grid.symmetric, laid(steps.blocks).astype(np.float32), zeros, inputs_axis, grid.block)
