"""The table of a model whose values flow as float16: weights, and what 8-bit products read.

A product may read 8-bit codes where that resolves what is usual there: massive activations (arXiv 2402.17762) on one
token stretch a static grid until all other tokens lie on a few of its steps, and the sum of squares, which they rule,
would not show it. So the noise of rounding is held against the 999 of 1000 values that are smallest; where it drowns
them the product reads float16, and only its weight has 8 bits.

The steps of fp8 grow with the values: one 24,000 times as large as the usual ones leaves those all their bits, and one
as large as float16 holds leaves values of 1 at 20 dB. So there every product reads codes, and the gates judge.
SmolLM2's KL, weights by their largest value: 0.080, with float16 before each down_proj 0.078, weights alone 0.046.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from edgeforge import float8
from edgeforge.calibrate.histogram import Histogram
from edgeforge.encodings import Encoding, Floats, Table, per_tensor, reals
from edgeforge.graph import edit
from edgeforge.quantize import clip, roles
from edgeforge.quantize.assign import origin, wider
from edgeforge.quantize.products import products
from edgeforge.quantize.weights.grid import per_channel

_READ = 8
"""bits of what a product reads as codes: its weight has them too"""
_WHOLE = 16
_USUAL = 0.999
_LEAST_DB = 20.0
"""of what is usual over the noise of rounding, for a product to read codes"""


def table(graph: ir.Graph, fitted: Mapping[str, Encoding], outside: Mapping[str, int],
          seen: Mapping[str, Histogram], fp8: bool = False, embedding: int = _WHOLE) -> Table:
    """The fitted weights, those outside the search on one step a channel, embedding tables on one a row, and what
    products read.

    Args:
        outside: bits by weight name. seen: of what products read, by the name of the value that was watched
            (see `watched`); where an 8-bit weight reads one, it may get a symmetric grid. Empty: only weights are
            rounded. fp8: what has 8 bits is E4M3. embedding: bits of a table that nothing but a lookup reads; a row is
            found by its token, so that each may have a step of its own.
    """
    made = Table(fitted)
    for looked_up in clip.tables(graph) if embedding < _WHOLE else ():
        array = edit.constant(looked_up)
        if array is not None:
            made.set(str(looked_up.name), per_channel(reals(array), 0, embedding, half=True))
    for name, bits in outside.items():
        value = graph.initializers[name]
        axis, array = roles.weight_axis(value), edit.constant(value)
        if axis is not None and array is not None:
            made.set(name, per_channel(reals(array), axis, bits, half=True, e4m3=fp8 and bits == _READ))
    for product in products(graph):
        found = seen.get(str(origin(product.source).name))
        if found is not None and product.name in made and made[product.name].bits == _READ:
            encoding = _floats(found) if fp8 else _grid(found)
            if fp8 or decibels(found, float(encoding.scale)) >= _LEAST_DB:
                made.set(str(product.source.name), encoding)
    return made


def watched(graph: ir.Graph) -> list[str]:
    """The values to count for `table`: what products read, before it was only moved."""
    return list(dict.fromkeys(str(origin(p.source).name) for p in products(graph)))


def readers(graph: ir.Graph, found: Mapping[str, Encoding]) -> tuple[int, list[str]]:
    """How many products read codes, and the 8-bit weights whose products do not."""
    eight = [p for p in products(graph) if p.name in found and found[p.name].bits == _READ]
    left = [p.name for p in eight if str(p.source.name) not in found]
    return len(eight) - len(left), left


def decibels(seen: Histogram, step: float) -> float:
    """Power of the values that are usual over that of rounding to step."""
    sizes = np.abs(seen.centres)
    order = np.argsort(sizes, kind="stable")
    counts = seen.counts[order]
    inside = np.cumsum(counts) <= _USUAL * counts.sum()
    power = float((counts[inside] * sizes[order][inside] ** 2).sum() / max(counts[inside].sum(), 1))
    return float(10 * np.log10(max(power, 1e-30) / (step**2 / 12)))


def _grid(seen: Histogram) -> Encoding:
    """The smallest symmetric grid that holds what was seen, its step a float16."""
    grid = per_tensor(*seen.range, _READ, symmetric=True, signed=True)
    return Encoding(_READ, True, _half(float(grid.scale)), grid.zero_point)


def _floats(seen: Histogram) -> Encoding:
    """E4M3 whose largest number is what was seen, and headroom, which costs floats nothing."""
    low, high = wider(seen.range)
    return Encoding(_READ, True, _half(max(-low, high) / float8.MOST), np.array(0, np.int64), e4m3=True)


def _half(step: float) -> Floats:
    """The nearest float16 above zero."""
    found: Floats = np.asarray(np.maximum(np.float16(step), np.finfo(np.float16).smallest_subnormal), np.float32)
    return found
