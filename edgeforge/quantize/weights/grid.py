"""The grids a weight can ship on, and the steps chosen on one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgeforge.encoding import Encoding

_FLOOR = 1e-9
"""smallest step: a channel of zeros keeps a positive scale"""
_HALF_FLOOR = 2.0**-24
"""smallest float16 above zero"""


@dataclass(frozen=True)
class Grid:
    """What codes a weight may have; zero is the code 0.

    block: inputs that share one step; None for one step a channel. lpbq: block steps are integers 1..TOP times one
    float a channel (low-power block quantization: int4 is expanded to int8 by integers on the accelerator). half: steps
    are float16 numbers, as what computes in float16 reads them. palette: outputs that share a table of 2^bits float16
    numbers (palette.py), which then takes the steps' place.
    """

    bits: int
    block: int | None = None
    lpbq: bool = False
    half: bool = False
    palette: int | None = None

    @property
    def low(self) -> int:
        return -(1 << (self.bits - 1))

    @property
    def high(self) -> int:
        return (1 << (self.bits - 1)) - 1

    def size(self, inputs: int) -> int:
        """Inputs that share one step. ValueError when a block does not divide inputs."""
        size = self.block or inputs
        if inputs % size:
            raise ValueError(f"blocks of {size} do not divide {inputs} inputs")
        return size


@dataclass(frozen=True)
class Steps:
    """The steps of a weight [n, o] with b blocks: channel [1, o] * factors [b, o]."""

    grid: Grid
    channel: Tensor
    factors: Tensor

    @property
    def blocks(self) -> Tensor:
        """The step of every block, [b, o]."""
        return self.channel * self.factors

    def rows(self, inputs: int) -> Tensor:
        """The step of every weight, [inputs, o]."""
        return spread(self.blocks, inputs)

    def nearest(self, weight: Tensor) -> Tensor:
        """Codes (whole numbers, float) of weight [n, o], rounded to nearest."""
        return torch.clamp(torch.round(weight / self.rows(len(weight))), self.grid.low, self.grid.high)

    def reals(self, codes: Tensor) -> Tensor:
        """What codes [n, o] stand for."""
        return codes * self.rows(len(codes))


def steps_of(grid: Grid, blocks: Tensor) -> Steps:
    """Steps with float blocks [b, o] (one block: a step a channel)."""
    if len(blocks) == 1:
        return Steps(grid, blocks, torch.ones_like(blocks))
    return Steps(grid, torch.ones_like(blocks[:1]), blocks)


def shipped(steps: Steps) -> Steps:
    """The steps as they are stored: those of a `half` grid rounded to float16."""
    if not steps.grid.half:
        return steps
    return steps_of(steps.grid, steps.blocks.half().float().clamp_min(_HALF_FLOOR))


def spread(blocks: Tensor, inputs: int) -> Tensor:
    """[b, o] -> [inputs, o]."""
    return blocks if len(blocks) == 1 else blocks.repeat_interleave(inputs // len(blocks), 0)


def minmax(weight: Tensor, grid: Grid) -> Tensor:
    """The smallest step of each block, [b, o], that clips nothing of weight [n, o]."""
    parts = weight.view(-1, grid.size(len(weight)), weight.shape[1])
    return torch.maximum(parts.amax(1) / grid.high, parts.amin(1) / grid.low).clamp_min(_FLOOR)


def per_channel(weight: npt.NDArray[np.floating], axis: int, bits: int, half: bool = False) -> Encoding:
    """The min-max grid of a weight that no search fits, with one step for each slice along axis."""
    flat = np.ascontiguousarray(np.moveaxis(weight, axis, -1).reshape(-1, weight.shape[axis]), np.float32)
    grid = Grid(bits, half=half)
    scale = shipped(steps_of(grid, minmax(torch.from_numpy(flat), grid))).channel[0].numpy()
    return Encoding(bits, True, scale, np.zeros(scale.shape, np.int64), axis)


def encoding(steps: Steps, channel: int, inputs_axis: int, rank: int) -> Encoding:
    """steps as the table's entry for a weight of that rank, whose outputs and inputs lie on those axes."""
    grid = steps.grid

    def laid(blocks: Tensor) -> np.ndarray:
        shape = [1] * rank
        shape[inputs_axis], shape[channel] = blocks.shape
        array = blocks.numpy() if inputs_axis < channel else blocks.T.numpy()
        return np.ascontiguousarray(array).reshape(shape)

    if grid.block is None:
        scale = steps.channel[0].numpy()
        return Encoding(grid.bits, True, scale, np.zeros(scale.shape, np.int64), channel)
    zeros = np.zeros(laid(steps.factors).shape, np.int64)
    if grid.lpbq:
        return Encoding(grid.bits, True, steps.channel[0].numpy(), zeros, inputs_axis, grid.block,
                        laid(steps.factors).astype(np.int64), channel)
    return Encoding(grid.bits, True, laid(steps.blocks), zeros, inputs_axis, grid.block)
