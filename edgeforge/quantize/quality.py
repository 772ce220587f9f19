"""How much work a quality buys: presets of the methods, each key open to the recipe.

On SmolLM2-135M (W4 in blocks of 64, weights alone; KL on text of calibration's kinds): nearest 0.41, the search for
scales 0.20, GPTQ and one refinement on top of it 0.11, a quarter of the asymmetric correction 0.09.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import onnx_ir as ir
from edgeforge_runtime.manifest import LOGITS

from edgeforge.quantize.products import Product, products
from edgeforge.quantize.weights.fit import Method
from edgeforge.quantize.weights.grid import Grid

if TYPE_CHECKING:
    from edgeforge.recipe import Quantize

PRESETS = {
    "fast": Method("search", "nearest", refine=0, correction=0.0),
    "balanced": Method("search", "gptq", refine=1, correction=0.25),
    "best": Method("search", "gptq", refine=2, correction=0.25),
}


def method(options: Quantize) -> Method:
    """The preset of the recipe's quality, with the keys that the recipe sets itself."""
    said = {key: value for key in ("scales", "rounding", "refine", "correction")
            if (value := getattr(options, key)) is not None}
    return dataclasses.replace(PRESETS[options.quality], **said)


def grids(graph: ir.Graph, options: Quantize) -> dict[str, Grid]:
    """The grid of every product's weight, by its name."""
    top = head(graph)
    found = {}
    for product in products(graph):
        bits = options.head if product.name == top else options.weights
        block = options.block if bits == 4 and product.blocked else None
        if block is not None and product.inputs % block:
            block = None
        found[product.name] = Grid(bits, block, lpbq=block is not None)
    return found


def head(graph: ir.Graph) -> str | None:
    """The weight that makes a decoder's logits; None for a graph without them."""
    known: dict[ir.Node, Product] = {p.node: p for p in products(graph)}
    todo = [v for v in graph.outputs if str(v.name) == LOGITS]
    while todo:
        node = todo.pop().producer()
        if node in known:
            return known[node].name
        if node is not None:
            todo += [v for v in node.inputs[:1] if v is not None]
    return None
