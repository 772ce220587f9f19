"""The table of a model whose values flow as float16: weights, and what 8-bit products read."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from edgeforge.encodings import Encoding, Table, per_tensor, reals
from edgeforge.graph import edit
from edgeforge.quantize import roles
from edgeforge.quantize.assign import Range, origin, union
from edgeforge.quantize.products import products
from edgeforge.quantize.weights.grid import per_channel

_READ = 8
"""bits of what a product reads as codes: its weight has them too"""


def table(graph: ir.Graph, fitted: Mapping[str, Encoding], outside: Mapping[str, int],
          ranges: Mapping[str, Range]) -> Table:
    """The fitted weights, those outside the search on one step a channel, and what products read.

    Args:
        outside: bits by weight name. ranges: smallest and largest value seen; of what 8-bit weights read each gets
            a symmetric grid. Empty: nothing but weights is rounded.
    """
    made = Table(fitted)
    for name, bits in outside.items():
        value = graph.initializers[name]
        axis, array = roles.weight_axis(value), edit.constant(value)
        if axis is not None and array is not None:
            made.set(name, per_channel(reals(array), axis, bits, half=True))
    for product in products(graph):
        if ranges and product.name in made and made[product.name].bits == _READ:
            made.set(str(product.source.name), _read(union([origin(product.source)], ranges)))
    return made


def _read(seen: Range) -> Encoding:
    """The smallest symmetric grid that holds what was seen, its step a float16."""
    grid = per_tensor(*seen, _READ, symmetric=True, signed=True)
    step = np.maximum(np.float16(grid.scale), np.finfo(np.float16).smallest_subnormal).astype(np.float32)
    return Encoding(_READ, True, np.asarray(step), grid.zero_point)
