"""AIMET's LPBQ+SeqMSE recipe (aimet-onnx 2.42.0, sequential_mse) through our walk and our Gram matrices.

Twenty candidates a block (or channel), linear from 1/20 of the min-max step to all of it, rounding to nearest. Blocks
are searched with real steps, each weight behind earlier ones on *their* real steps; integers 1..16 come last, rounded
from the steps. Weights of more than 4 bits (the head) are not searched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import torch
from torch import Tensor

from edgeforge.quantize import sequential
from edgeforge.quantize.products import Product
from edgeforge.quantize.walk import Sample, Walk
from edgeforge.quantize.weights import lpbq, seqmse
from edgeforge.quantize.weights.fit import Fitted
from edgeforge.quantize.weights.gram import Gram
from edgeforge.quantize.weights.grid import Grid, Steps, minmax, steps_of
from peer.job import BITS, CANDIDATES

FRACTIONS = tuple(i / CANDIDATES for i in range(1, CANDIDATES + 1))


@dataclass(frozen=True)
class Chosen:
    """searched: the steps that won. shipped: the same on the grid that ships (integers, with blocks)."""

    searched: Steps
    shipped: Steps


def choose(weight: Tensor, gram: Gram, grid: Grid) -> Chosen:
    """Steps for weight [n, o]; the Gram matrix should be undamped."""
    if grid.bits > BITS:
        step = minmax(weight, grid)
    else:
        step = seqmse.search(weight, gram.blocks(grid.size(len(weight))), grid, FRACTIONS)
    searched = steps_of(grid, step)
    return Chosen(searched, lpbq.rounded(step, grid) if grid.lpbq else searched)


@torch.no_grad()
def quantize(model: ir.Model, samples: Sequence[Sample], grids: Mapping[str, Grid], say: Callable[[str], None]) -> None:
    """Replaces every product's weight that has a grid, as `sequential.quantize` does by our own methods."""
    walk = Walk(model.graph, samples, both=False)
    made: dict[Product, Fitted] = {}
    for index, stop in enumerate(walk.visit()):
        say(f"weights {index + 1} of {len(walk.stops)}")
        gram = Gram(walk.sums(stop).gram, damp=0)
        for product in (p for p in stop.products if p.name in grids):
            weight = product.matrix()
            chosen = choose(weight, gram, grids[product.name])
            walk.replace(product, chosen.searched.reals(chosen.searched.nearest(weight)))
            made[product] = Fitted(chosen.shipped.nearest(weight), chosen.shipped).small()
    for product, fitted in made.items():
        sequential.keep(product, fitted)
