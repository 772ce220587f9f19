"""All weights of a graph, one after the other: the walk's statistics, one weight's fit, and what comes of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch

from edgeforge.encodings import Encoding
from edgeforge.errors import EdgeForgeError
from edgeforge.graph import edit
from edgeforge.quantize import importance, parameters
from edgeforge.quantize.products import Product
from edgeforge.quantize.reconstruct import Block, tune
from edgeforge.quantize.walk import Sample, Stop, Sums, Walk, between
from edgeforge.quantize.weights import target
from edgeforge.quantize.weights.fit import Fitted, Method, fit
from edgeforge.quantize.weights.gram import Gram, UnsolvableError
from edgeforge.quantize.weights.grid import Grid, encoding
from edgeforge.quantize.weights.palette import Palette


@dataclass(frozen=True)
class Weight:
    """A fitted weight. form: its grid, or its codes and tables. loss: what its error costs, over what its outputs hold
    (both summed over calibration). tuned: whether its steps were, afterwards, with its block (reconstruct.py); None: it
    lies in none, or nobody asked."""

    name: str
    count: int
    form: Encoding | Palette
    loss: float
    tuned: bool | None = None


def quantize(model: ir.Model, samples: Sequence[Sample], grids: Mapping[str, Grid], method: Method,
             say: Callable[[str], None], held: Mapping[str, Encoding] | None = None) -> list[Weight]:
    """Replaces every product's weight by the one that its codes stand for; rounding that to nearest gives the codes.

    Args:
        grids: by weight name; a product without one keeps its weight.
        held: grids that are settled, by weight name. Those weights are rounded to nearest for all that is fitted
            behind them, and stay in the model as they are.
    """
    shares = None
    if method.importance:
        say("what each token counts")
        shares = importance.shares(model.graph, samples)
    walk = Walk(model.graph, samples, method.correction > 0 or method.reconstruct, shares)
    fits = _Fits(walk, method)
    for index, stop in enumerate(walk.visit()):
        say(f"weights {index + 1} of {len(walk.stops)}")
        fits.reach(stop)
        for product in stop.products:
            if held and product.name in held:
                walk.replace(product, _rounded(product, held[product.name]))
        wanted = [p for p in stop.products if p.name in grids]
        if not wanted:
            continue
        sums = walk.sums(stop)
        gram = Gram(sums.gram)
        for product in wanted:
            fitted = _one(product, gram, sums, grids[product.name], method)
            walk.replace(product, fitted.reals)
            fits.add(product, fitted, _loss(product, fitted, sums.gram))
    # Only now: the float stream reads the model's own parameters to the end.
    for value, gain in fits.gains.items():
        value.const_value = ir.tensor(gain.numpy(), name=value.name)
    for product, fitted in fits.made.items():
        keep(product, fitted)
    return [Weight(product.name, math.prod(fitted.codes.shape), _form(product, fitted), fits.losses[product],
                   fits.tuned.get(product)) for product, fitted in fits.made.items()]


class _Fits:
    """What was fitted so far, and the block that is still open."""

    def __init__(self, walk: Walk, method: Method) -> None:
        self._walk, self._method = walk, method
        self.made: dict[Product, Fitted | Palette] = {}
        self.losses: dict[Product, float] = {}
        self.gains: dict[ir.Value, torch.Tensor] = {}
        self.tuned: dict[Product, bool] = {}
        """of those that lie in a block: whether tuning it paid"""
        self._start: ir.Value | None = None
        self._starts: list[dict[ir.Value, torch.Tensor]] = []
        self._open: list[Product] = []

    def add(self, product: Product, fitted: Fitted | Palette, loss: float) -> None:
        self.made[product], self.losses[product] = fitted.small(), loss
        self._open.append(product)

    def reach(self, stop: Stop) -> None:
        """At a cut the block behind it is tuned as a whole, and the next one opens."""
        if not self._method.reconstruct or stop.cut is None:
            return
        if self._start is not None and self._open:
            self._tune(stop, self._start, stop.cut)
        self._start, self._starts, self._open = stop.cut, self._walk.quantized(stop.cut), []

    def _tune(self, stop: Stop, start: ir.Value, end: ir.Value) -> None:
        steps = [(p, f) for p in self._open if isinstance(f := self.made[p], Fitted)]  # all: tables are not tuned
        block = Block(start, end, between(start, [end]), tuple(steps))
        shares = self._walk.share(self._open[-1].name)
        tuned = tune(block, self._starts, self._walk.truth(end), shares, self._method.correction)
        self.tuned |= dict.fromkeys(self._open, tuned is not None)
        if tuned is None:
            return
        made, gains = tuned
        self.made |= {p: f.small() for p, f in zip(self._open, made, strict=True)}
        self.gains |= gains
        weights = {p.weight: p.restored(self.made[p].reals) for p in self._open} | gains
        nodes = between(start, [v for v in stop.kept if v.producer() is not None])
        self._walk.resume(stop, nodes, self._starts, weights)


def _rounded(product: Product, encoding: Encoding) -> torch.Tensor:
    """The weight's nearest values on the grid, [inputs, outputs]."""
    array = parameters.read(product.weight).numpy().astype(np.float32)
    return product.flat(torch.from_numpy(encoding.dequantize(encoding.quantize(array))))


@torch.no_grad()
def _one(product: Product, gram: Gram, sums: Sums, grid: Grid, method: Method,
         ) -> Fitted | Palette:
    wanted = product.matrix()
    if not torch.isfinite(sums.gram).all():
        raise EdgeForgeError(f"what {product.name} is multiplied with ({product.source.name}) is not finite on "
                             "calibration data, or too large to be squared", "mend the model, or leave out the data "
                             "that it cannot read")
    try:
        if sums.drift is not None and method.correction > 0:
            wanted = target.corrected(wanted, gram, sums.drift, sums.streams.get(product.name), method.correction)
        return fit(wanted, gram, grid, method)
    except UnsolvableError as error:
        raise EdgeForgeError(f"the sums over what {product.name} is multiplied with ({product.source.name}) cannot be "
                             f"solved: {error}", "set quantize.rounding to nearest and quantize.correction to 0, which "
                             "solve nothing, or calibrate on other data") from error


@torch.no_grad()
def _loss(product: Product, fitted: Fitted | Palette, gram: torch.Tensor) -> float:
    weight = product.matrix()
    power, error = ((gram @ weight) * weight).sum(), weight - fitted.reals
    return float(((gram @ error) * error).sum() / power) if power > 0 else 0.0


def _form(product: Product, fitted: Fitted | Palette) -> Encoding | Palette:
    if isinstance(fitted, Palette):
        return fitted
    rank = len(edit.known_dims(product.weight))
    return encoding(fitted.steps, product.outputs_axis, product.inputs_axis, rank)


def keep(product: Product, fitted: Fitted | Palette) -> None:
    """The weight's new value, computed from its codes only when it is read: a byte a weight, not four."""
    name, shape = product.name, edit.known_dims(product.weight)

    def reals() -> ir.TensorProtocol:
        return ir.tensor(product.restored(fitted.reals).numpy(), name=name)

    product.weight.const_value = ir.LazyTensor(
        reals, dtype=ir.DataType.FLOAT, shape=ir.Shape([int(d) for d in shape]), name=name)
