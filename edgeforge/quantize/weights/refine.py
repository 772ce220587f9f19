"""Better steps for given codes, and better codes for given steps: each lowers e' H e, so alternating does.

rescale: with the codes fixed the loss is a parabola in a channel's float, and in each block's integer; both have
closed forms. descend: with the steps fixed, the best code of one input given all others is one rounding
(coordinate descent, as in CDQuant, arXiv 2406.17542); a sweep visits every input once.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from edgeforge.encoding import TOP
from edgeforge.quantize.weights.gram import Gram
from edgeforge.quantize.weights.grid import Steps

_BLOCK = 64
_TINY = 1e-12


def descend(weight: Tensor, codes: Tensor, steps: Steps, gram: Gram) -> Tensor:
    """One sweep over the inputs of weight [n, o]; returns the new codes."""
    n, h = len(weight), gram.matrix
    step = steps.rows(n).expand_as(weight)
    codes = codes.clone()
    slope = h @ (weight - codes * step)
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        local, inner = slope[start:stop].clone(), h[start:stop, start:stop].contiguous()
        moved = torch.empty_like(local)
        for i in range(start, stop):
            new = steps.grid.round_(codes[i] + local[i - start] / (step[i] * h[i, i]))
            moved[i - start] = (new - codes[i]) * step[i]
            codes[i] = new
            local.addr_(inner[i - start], moved[i - start], alpha=-1)
        slope -= h[:, start:stop] @ moved
    return codes


def rescale(weight: Tensor, codes: Tensor, steps: Steps, gram: Gram) -> Steps:
    """Steps that fit codes [n, o] best: channel floats in closed form, then block by block its factor."""
    wanted = gram.matrix @ weight
    steps = _channels(codes, steps, gram, wanted)
    if steps.grid.block is None:
        return steps
    return _channels(codes, _factors(codes, steps, gram, wanted), gram, wanted)


def _channels(codes: Tensor, steps: Steps, gram: Gram, wanted: Tensor) -> Steps:
    """The best float for each channel: <t, H w> / <t, H t>, with t the codes times their factors."""
    shape = codes * dataclasses.replace(steps, channel=torch.ones_like(steps.channel)).rows(len(codes))
    power = (shape * (gram.matrix @ shape)).sum(0, keepdim=True)
    best = (shape * wanted).sum(0, keepdim=True) / power.clamp_min(_TINY)
    # A channel whose codes are all zero, or whose best float is none, keeps what it has.
    kept = (power > _TINY) & (best > 0.1 * steps.channel)
    return dataclasses.replace(steps, channel=torch.where(kept, best, steps.channel))


def _factors(codes: Tensor, steps: Steps, gram: Gram, wanted: Tensor) -> Steps:
    """One pass over the blocks, each factor to its optimum given all others; integers stay integers."""
    n, h, factors = len(codes), gram.matrix, steps.factors.clone()
    size = n // len(factors)
    slope = wanted - h @ (codes * steps.rows(n))
    for b in range(len(factors)):
        rows = slice(b * size, (b + 1) * size)
        here = codes[rows]
        power = ((h[rows, rows] @ here) * here).sum(0)
        best = factors[b] + (here * slope[rows]).sum(0) / (power * steps.channel[0]).clamp_min(_TINY)
        if steps.grid.lpbq:
            best = best.round().clamp(1, TOP)
        best = torch.where((power > _TINY) & (best > 0.1 * factors[b]), best, factors[b])
        slope -= h[:, rows] @ (here * ((best - factors[b]) * steps.channel[0]))
        factors[b] = best
    if steps.grid.lpbq:  # the largest integer has to stay TOP: a channel where it would not keeps its old ones
        factors = torch.where(factors.amax(0, keepdim=True) == TOP, factors, steps.factors)
    return dataclasses.replace(steps, factors=factors)
