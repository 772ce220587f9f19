"""What each weight loses at 4 bits and at 8, from one walk of the float stream.

A weight's loss is e'He / w'Hw: the share of its outputs' power that its error makes. It comes from the cheap
search (scales by search, codes to nearest): the better methods lower all of them alike. No Gram matrix outlives its
stop, and nothing is replaced, so one weight's figure knows nothing of another's bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir
import torch
from torch import Tensor

from edgeforge.quantize.budget import HIGH, Choice, stored_bits
from edgeforge.quantize.products import Product
from edgeforge.quantize.walk import Sample, Walk
from edgeforge.quantize.weights.fit import Method, fit
from edgeforge.quantize.weights.gram import Gram
from edgeforge.quantize.weights.grid import Grid

_CHEAP = Method("search", "nearest", refine=0, correction=0.0)


def choices(model: ir.Model, samples: Sequence[Sample], grids: Mapping[str, Grid],
            say: Callable[[str], None]) -> list[Choice]:
    """One for each product that has a grid, in graph order; grids: of 4 bits, by weight name."""
    walk = Walk(model.graph, samples, both=False)
    found = []
    for index, (stop, sums) in enumerate(walk.visit()):
        wanted = [p for p in stop.products if p.name in grids]
        if wanted:
            say(f"sensitivity {index + 1} of {len(walk.stops)}")
            gram = Gram(sums.gram)
            found += [_choice(p, gram, sums.gram, grids[p.name]) for p in wanted]
    return found


@torch.no_grad()
def _choice(product: Product, gram: Gram, plain: Tensor, low: Grid) -> Choice:
    weight = product.matrix()
    power = float(((plain @ weight) * weight).sum())
    stored, losses = [], []
    for grid in (low, Grid(HIGH)):
        error = weight - fit(weight, gram, grid, _CHEAP).reals
        losses.append(float(((plain @ error) * error).sum()) / power if power > 0 else 0.0)
        stored.append(stored_bits(len(weight), weight.shape[1], grid.bits, grid.block))
    return Choice(product.name, weight.numel(), (stored[0], stored[1]), (losses[0], losses[1]))
