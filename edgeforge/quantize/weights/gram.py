"""X'X of what a weight reads, and what the searches take from it."""

from __future__ import annotations

import itertools
from functools import cached_property

import torch
from torch import Tensor

DAMP = 0.03
"""share of each channel's own energy that is added to it: rounding of what is read, and text never seen, are
noise that every channel has in proportion to its size. KL of SmolLM2 (W4 in blocks of 64, 4k tokens, no
correction): 0.131 with 0.01, 0.123 with 0.03"""
_DEAD = 1e-6
"""energy of a channel that was never seen to differ from zero, as a share of the others': text never seen may wake it,
and until then its weights, however large, must not decide the step that it shares with others, of 8 bits either"""
_TILE = 128
"""smallest side of a tile: below it a matrix product slows down by more than the other triangle would cost"""


def edges(size: int) -> list[tuple[int, int]]:
    """Up to eight row tiles of a symmetric matrix. Each with all columns from its own on: 9/16 of the whole."""
    count = max(1, min(8, size // _TILE))
    cuts = [size * i // count for i in range(count + 1)]
    return list(itertools.pairwise(cuts))


class Sum:
    """Y'X over samples, [n, n], where that is symmetric: its upper tiles are summed, the others are their mirror."""

    def __init__(self, size: int) -> None:
        self._total = torch.zeros(size, size)

    def add(self, y: Tensor, x: Tensor) -> None:
        """One sample's rows, [tokens, n] each."""
        for start, end in edges(len(self._total)):
            self._total[start:end, start:].addmm_(y[:, start:end].T, x[:, start:])

    @property
    def matrix(self) -> Tensor:
        for start, end in edges(len(self._total)):
            self._total[end:, start:end] = self._total[start:end, end:].T
        return self._total


class UnsolvableError(ArithmeticError):
    """A Gram matrix that has no inverse, even damped."""


class Gram:
    """H = X'X [n, n] over calibration tokens, float32."""

    def __init__(self, matrix: Tensor, damp: float = DAMP) -> None:
        self.matrix = matrix.clone()
        diagonal = self.matrix.diagonal()
        live = diagonal > 0
        # A channel that is always zero costs nothing, however it is rounded; it must only stay solvable.
        dead = _DEAD * diagonal[live].mean() if live.any() else torch.ones(())
        diagonal.copy_(torch.where(live, diagonal * (1 + damp), dead))

    def blocks(self, size: int) -> Tensor:
        """The blocks on the diagonal, [n / size, size, size]; the whole for size n."""
        n = len(self.matrix)
        if size == n:
            return self.matrix[None]
        return torch.stack([self.matrix[i:i + size, i:i + size] for i in range(0, n, size)])

    @cached_property
    def order(self) -> Tensor:
        """Channels, the one with the most energy first."""
        return torch.argsort(self.matrix.diagonal(), descending=True, stable=True)

    @cached_property
    def upper(self) -> Tensor:
        """U, upper triangular, with H^-1 = U'U, in `order`'s channels; UnsolvableError when H is not positive."""
        h = self.matrix[self.order][:, self.order].double()
        # With rows and columns reversed, the Cholesky factor of H^-1 is the reversed inverse of H's own.
        lower, failed = torch.linalg.cholesky_ex(h.flip(0, 1))
        if failed:
            raise UnsolvableError(f"its {len(h)} channels have no Cholesky factor")
        eye = torch.eye(len(h), dtype=h.dtype)
        inverse = torch.linalg.solve_triangular(lower, eye, upper=False)
        upper: Tensor = inverse.flip(0, 1).float().contiguous()
        return upper

    def solve(self, right: Tensor) -> Tensor:
        """H^-1 right, right being [n, o]."""
        found = torch.empty_like(right)
        found[self.order] = self.upper.T @ (self.upper @ right[self.order])
        return found


class Loss:
    """e' H_bb e of every block and column, for many errors: blocks [b, s, s], error [b, s, o] -> [b, o]."""

    def __init__(self, blocks: Tensor) -> None:
        self._blocks, self._tiles = blocks, list[tuple[int, int, Tensor]]()
        if len(blocks) == 1:
            for start, end in edges(blocks.shape[1]):  # what lies right of the diagonal stands for its mirror too
                rows = blocks[0, start:end, start:].clone()
                rows[:, end - start:] *= 2
                self._tiles.append((start, end, rows))

    def __call__(self, error: Tensor) -> Tensor:
        if not self._tiles:
            return (torch.bmm(self._blocks, error) * error).sum(1)
        parts = [(rows @ error[0, start:] * error[0, start:end]).sum(0) for start, end, rows in self._tiles]
        return torch.stack(parts).sum(0, keepdim=True)
