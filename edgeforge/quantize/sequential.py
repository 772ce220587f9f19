"""All weights of a graph, one after the other: the walk's statistics, one weight's fit, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch
from edgeforge_runtime.manifest import LOGITS

from edgeforge.encodings import Encoding
from edgeforge.graph import edit
from edgeforge.quantize import importance
from edgeforge.quantize.products import Product
from edgeforge.quantize.walk import Sample, Sums, Walk
from edgeforge.quantize.weights import target
from edgeforge.quantize.weights.fit import Fitted, Method, fit
from edgeforge.quantize.weights.gram import Gram
from edgeforge.quantize.weights.grid import Grid, encoding


@dataclass(frozen=True)
class Weight:
    """A fitted weight. loss: what its error costs, over what its outputs hold (both summed over calibration)."""

    name: str
    count: int
    encoding: Encoding
    loss: float

    @property
    def stored_bits(self) -> int:
        """Bits of its codes and steps as they are shipped: float32 a channel (or block), 4 bits an integer."""
        blocks = 0 if self.encoding.block_scale is None else 4 * self.encoding.block_scale.size
        return self.count * self.encoding.bits + 32 * self.encoding.scale.size + blocks


def quantize(model: ir.Model, samples: Sequence[Sample], grids: Mapping[str, Grid], method: Method,
             say: Callable[[str], None]) -> list[Weight]:
    """Replaces every product's weight by the one that its codes stand for; rounding that to nearest gives the codes.

    Args:
        grids: by weight name; a product without one keeps its weight.
    """
    shares = None
    if method.importance and any(str(v.name) == LOGITS for v in model.graph.outputs):
        say("what each token counts")
        shares = importance.shares(model.graph, samples)
    walk = Walk(model.graph, samples, method.correction > 0, shares)
    done: list[Weight] = []
    for index, (stop, sums) in enumerate(walk.visit()):
        say(f"weights {index + 1} of {len(walk.stops)}")
        gram = Gram(sums.gram)
        for product in stop.products:
            grid = grids.get(product.name)
            if grid is not None:
                done.append(_one(product, gram, sums, grid, method, walk))
    return done


@torch.no_grad()
def _one(product: Product, gram: Gram, sums: Sums, grid: Grid, method: Method, walk: Walk) -> Weight:
    weight = product.matrix()
    wanted = weight
    if sums.drift is not None:
        wanted = target.corrected(weight, gram, sums.drift, sums.streams.get(product.name), method.correction)
    fitted = fit(wanted, gram, grid, method)
    reals = fitted.reals
    walk.replace(product, reals)
    keep(product, fitted)
    power = ((sums.gram @ weight) * weight).sum()
    lost = ((sums.gram @ (weight - reals)) * (weight - reals)).sum()
    rank = len(edit.known_dims(product.weight))
    return Weight(product.name, weight.numel(), encoding(fitted.steps, product.outputs_axis, product.inputs_axis, rank),
                  float(lost / power) if power > 0 else 0.0)


def keep(product: Product, fitted: Fitted) -> None:
    """The weight's new value, computed from its codes only when it is read: a byte a weight, not four."""
    kind = torch.int8 if fitted.steps.grid.bits <= 8 else torch.int32
    small = Fitted(fitted.codes.to(kind), fitted.steps)
    name, shape = product.name, edit.known_dims(product.weight)

    def reals() -> ir.TensorProtocol:
        whole = Fitted(small.codes.float(), small.steps)
        return ir.tensor(np.ascontiguousarray(product.restored(whole.reals)), name=name)

    product.weight.const_value = ir.LazyTensor(
        reals, dtype=ir.DataType.FLOAT, shape=ir.Shape([int(d) for d in shape]), name=name)
