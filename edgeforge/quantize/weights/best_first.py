"""The best of many steps for each column of a weight, most of them never tried.

With H = X'X and any V, Nystroem's F'F = HV (V'HV)^-1 V'H leaves a positive semidefinite rest of H, so |F e|^2 is at
most e' H e, at a fraction of its price when V is narrow. Each column tries its candidates in the order of these
bounds, and stops at the first whose bound is no better than what it has: the minimiser is that of trying them all.
On SmolLM2's layers 4 of 20 candidates are left (V of n / 12 columns).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from edgeforge.quantize.weights.gram import Loss

_SHARE = 12
"""inputs a column of V"""
_SLACK = 1e-3
"""of a bound, for what float32 loses"""
_TINY = 1e-6
"""directions of V'HV with less than this share of the largest are left out: they are rounding"""
Columns = Tensor | slice


def search(h: Tensor, tried: int, columns: int, error: Callable[[Columns, Tensor | int], Tensor]) -> Tensor:
    """The candidate with the least e' H e for each column, the first of equal ones: int64 [o].

    Args:
        h: [n, n]. tried: how many candidates there are.
        error: of some columns with a candidate each (int64 [c]), or of a slice of all with one: [n, c].
    """
    factor, cost = bounding(h), Loss(h[None])
    bounds = torch.stack([(factor @ error(slice(None), i)).square().sum(0) for i in range(tried)]) * (1 - _SLACK)
    sorted_bounds, order = bounds.sort(dim=0, stable=True)
    best, chosen = torch.full((columns,), torch.inf), torch.zeros(columns, dtype=torch.int64)
    for turn in range(tried):
        left = (sorted_bounds[turn] <= best).nonzero()[:, 0]
        if not len(left):
            break
        candidate = order[turn, left]
        loss = cost(error(left, candidate)[None])[0]
        better = (loss < best[left]) | ((loss == best[left]) & (candidate < chosen[left]))
        best[left[better]], chosen[left[better]] = loss[better], candidate[better]
    return chosen


def bounding(h: Tensor) -> Tensor:
    """F [k, n] with |F e|^2 <= e' H e, near it for errors along what H has most of."""
    top = h.diagonal().max()
    h = h / top  # what is squared here stays within float32
    basis = torch.linalg.qr(h @ h[:, ::_SHARE]).Q  # one step of a power iteration from evenly spaced channels
    image = h @ basis
    energies, turn = torch.linalg.eigh(basis.T @ image)
    kept = energies > _TINY * energies[-1]
    factor: Tensor = (image @ turn[:, kept] * (top / energies[kept]).sqrt()).T.contiguous()
    return factor
