"""What each weight costs at 4 bits and at 8, from one walk of the float stream.

In a decoder the cost is in nats: the KL divergence, of each row of logits, that the weight's error alone makes, to
second order. With e the error, X what is read, g the gradient of a sampled token's log-likelihood at the product's
output, KL is E[(g . X e)^2] / 2; taken as if g and X e were independent and had no preferred direction, it is
E|g|^2 * e'He / (2 outputs * rows of logits): one backward pass a sample (importance.py) and the Gram matrix say it
all. On tiny random decoders nearly all these figures lie within a third of the KL measured with that one weight
quantized, and order the weights as it does: rank correlation 0.97, 0.98 and 0.87 for Llama, Qwen3 and Gemma2. The share
of the outputs' power that is lost, e'He / w'Hw, does not (0.21, 0.32, 0.19), but a plain graph has only that.

Errors come from the `fast` search (codes to nearest): better methods lower all of them alike. No Gram
matrix outlives its stop, and nothing is replaced: one weight's figure knows nothing of another's bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir
import torch
from torch import Tensor

from edgeforge.quantize import importance, weight_grids
from edgeforge.quantize.budget import HIGH, Choice, stored_bits
from edgeforge.quantize.products import Product
from edgeforge.quantize.quality import PRESETS
from edgeforge.quantize.walk import Sample, Walk
from edgeforge.quantize.weights.fit import fit
from edgeforge.quantize.weights.gram import Gram
from edgeforge.quantize.weights.grid import Grid


def choices(model: ir.Model, samples: Sequence[Sample], grids: Mapping[str, Grid], decoder: bool,
            say: Callable[[str], None]) -> list[Choice]:
    """One for each product that has a grid, in graph order.

    Args:
        grids: of 4 bits, by weight name. decoder: does model make a language model's logits?
    """
    energies: Mapping[str, list[Tensor]] = {}
    top = weight_grids.head(model.graph) if decoder else None
    if top is not None:
        say("what each product means to the answer")
        energies = importance.energies(model.graph, samples)
    rows = sum(map(len, energies.get(top or "", [])))
    walk = Walk(model.graph, samples, both=False)
    found = []
    for index, stop in enumerate(walk.visit()):
        wanted = [p for p in stop.products if p.name in grids]
        if wanted:
            say(f"sensitivity {index + 1} of {len(walk.stops)}")
            plain = walk.sums(stop).gram
            gram = Gram(plain)
            for product in wanted:
                weight = product.matrix()
                unit = _nats(weight, energies.get(product.name, []), rows) if rows else _share(weight, plain)
                found.append(_choice(product, weight, gram, plain, grids[product.name], unit))
    return found


def _share(weight: Tensor, plain: Tensor) -> float:
    power = float(((plain @ weight) * weight).sum())
    return 1 / power if power > 0 else 0.0


def _nats(weight: Tensor, energies: list[Tensor], rows: int) -> float:
    """KL a row of logits, for each unit of error energy summed over all that is read."""
    return float(torch.cat(energies).mean()) / (2 * weight.shape[1] * rows) if energies else 0.0


@torch.no_grad()
def _choice(product: Product, weight: Tensor, gram: Gram, plain: Tensor, low: Grid, unit: float) -> Choice:
    """unit: what one of e'He costs."""
    stored, losses = [], []
    for grid in (low, Grid(HIGH, half=low.half)):
        error = weight - fit(weight, gram, grid, PRESETS["fast"]).reals
        losses.append(unit * float(((plain @ error) * error).sum()))
        stored.append(stored_bits(len(weight), weight.shape[1], grid.bits, grid.block, grid.half))
    return Choice(product.name, weight.numel(), (stored[0], stored[1]), (losses[0], losses[1]))
