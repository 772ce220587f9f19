"""Rounding that mends its own errors: GPTQ (Frantar et al., arXiv 2210.17323), into any grid.

Channels are rounded one after the other; the error of each is passed on to those still open, in the way that
minimises e' H e: with H^-1 = U'U (U upper triangular), rounding channel i by e moves every later channel j by
-e U_ij / U_ii. Channels with the most energy go first, while many are left to mend them. Steps do not move.
"""

from __future__ import annotations

import torch
from torch import Tensor

from edgeforge.quantize.weights.gram import Gram
from edgeforge.quantize.weights.grid import Steps

_BLOCK = 64
"""channels whose mending of what lies behind them is done at once"""


def codes(weight: Tensor, steps: Steps, gram: Gram) -> Tensor:
    """Codes (float32) of weight [n, o]."""
    n, order, u = len(weight), gram.order, gram.upper
    step = steps.rows(n).expand_as(weight)[order]
    left, found = weight[order], torch.empty_like(weight)
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        errors = torch.empty_like(left[start:stop])
        for i in range(start, stop):
            code = steps.grid.round_(left[i] / step[i])
            found[i] = code
            errors[i - start] = (left[i] - code * step[i]) / u[i, i]
            left[i + 1:stop].addr_(u[i, i + 1:stop], errors[i - start], alpha=-1)
        left[stop:] -= u[start:stop, stop:].T @ errors
    back = torch.empty_like(found)
    back[order] = found
    return back
