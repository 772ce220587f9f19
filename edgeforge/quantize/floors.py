"""Scales that are too small beside the grids around them.

An integer product is brought to its output's grid by one multiplier a channel, input scale x weight scale / output
scale, and hardware holds it with so many bits. Below the smallest one that it can hold a channel saturates: worse than
losing it. Such a channel's whole output is less than one code, so a coarser scale costs nothing (case C32).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from edgeforge.encodings import Table
from edgeforge.quantize.products import products


def raised(graph: ir.Graph, table: Table, least: float) -> Table:
    """The table with every product's weight scales large enough for multipliers of at least `least`."""
    entries = dict(table)
    for product in products(graph):
        weight, x, y = (table.get(n) for n in (product.name, str(product.source.name),
                                               str(product.node.outputs[0].name)))
        if weight is None or x is None or y is None or not least:
            continue
        floor = np.float32(least * float(y.scale) / float(x.scale))
        if (weight.scale < floor).any():
            entries[product.name] = replace(weight, scale=np.asarray(np.maximum(weight.scale, floor)))
    return Table(entries)
