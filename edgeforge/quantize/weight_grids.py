"""Which grid each weight of a graph gets: bits, and whether blocks of its inputs share steps."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

import onnx_ir as ir
from edgeforge_runtime.manifest import LOGITS

from edgeforge.errors import RecipeError
from edgeforge.graph import edit
from edgeforge.quantize import exceptions, roles
from edgeforge.quantize.products import Product, products
from edgeforge.quantize.weights.grid import Grid

if TYPE_CHECKING:
    from edgeforge.sections import Quantize
    from edgeforge.targets import Flow

_FLOAT16, _EIGHT, _SIX = 16, 8, 6
_TABLES = (4, 6)
"""bits of what can be a table's entry"""
_OUTSIDE = 8
"""least bits of a weight that no search fits, where nobody asks for fewer: by its largest value alone, 4 are coarse"""


def choose(graph: ir.Graph, options: Quantize, decoder: bool, held: Collection[str] = (), flow: Flow = "codes",
           ) -> dict[str, Grid]:
    """The grid of every product's weight, by its name; where float16 flows, of those of fewer than 16 bits.

    Args:
        decoder: does graph make a language model's logits? Only then `head` speaks of one of its weights.
        held: weights whose grids are settled, and that get none here. flow: see Profile.
    """
    top = head(graph) if decoder else None
    found = {}
    for product in (p for p in products(graph) if p.name not in held):
        said = exceptions.bits(product.name, options.exceptions)
        bits = said or (options.head if product.name == top else options.weights)
        blocks = bits == 4 and options.block is not None and not unblocked(product, options.block, flow)
        half, tables = flow == "float16", _tables(product, options.palette) if bits in _TABLES else None
        if tables is None:
            bits = _affine(bits)
        if bits < _FLOAT16 or not half:
            found[product.name] = Grid(bits, options.block if blocks else None, lpbq=blocks and not half, half=half,
                                       e4m3=bits == _EIGHT and options.fp8, palette=tables)
    return found


def _tables(product: Product, wanted: int | None) -> int | None:
    """How many outputs of a product share a table: as many as wanted, or the largest divisor of both. None: tables are
    of 1x1 convolutions, which is what reads them."""
    shape = [int(d) for d in edit.known_dims(product.weight)]
    if wanted is None or product.node.op_type != "Conv" or any(d != 1 for d in shape[2:]):
        return None
    return math.gcd(wanted, shape[0])


def _affine(bits: int) -> int:
    """Without a table 6 bits are no format: 8."""
    return _OUTSIDE if bits == _SIX else bits


def refuse_strangers(graph: ir.Graph, options: Quantize, where: str) -> None:
    """Raises RecipeError: an exception names no weight. where: what to call `quantize.exceptions` in the message."""
    for pattern, near in exceptions.unmatched(options.exceptions, list(roles.weights(graph))).items():
        nearest = f"; the nearest is {near}" if near else ""
        raise RecipeError(f"{where}: no product's weight is called {pattern}{nearest}",
                          "write the name as `table.json` spells it; * stands for any characters")


def outside(graph: ir.Graph, options: Quantize, held: Collection[str] = (), flow: Flow = "codes") -> dict[str, int]:
    """Bits of the weights that no search fits, by name: of grouped, transposed and other convolutions, and what two
    nodes read. Each has one scale a channel, by its largest value. held, flow: see choose."""
    fitted = {p.name for p in products(graph)}
    found = {name: _affine(exceptions.bits(name, options.exceptions) or max(options.weights, _OUTSIDE))
             for name in roles.weights(graph) if name not in fitted and name not in held}
    return {name: bits for name, bits in found.items() if bits < _FLOAT16 or flow == "codes"}


def candidates(graph: ir.Graph, options: Quantize, decoder: bool, held: Collection[str] = (), flow: Flow = "codes",
               ) -> dict[str, Grid]:
    """The grids of the weights whose bits a budget decides: those that neither `head` nor an exception speaks of, and
    that are not held."""
    top = head(graph) if decoder else None
    return {name: grid for name, grid in choose(graph, options, decoder, held, flow).items()
            if name != top and exceptions.bits(name, options.exceptions) is None}


def unblocked(product: Product, block: int, flow: Flow = "codes") -> str:
    """Why a weight cannot have blocks; empty when it can. Where float16 flows, a MatMul reads them through a Transpose
    too (TensorRT; tried)."""
    turned = flow == "float16" and product.node.op_type == "MatMul"
    if not turned and not roles.takes_blocks(product.weight):
        turned = any(use.node.op_type == "Transpose" for use in product.weight.uses())
        return "it passes a Transpose" if turned else "only 1x1 convolutions and MatMuls take blocks"
    return f"{product.inputs} inputs" if product.inputs % block else ""


def left_whole(graph: ir.Graph, options: Quantize, decoder: bool, held: Collection[str] = (), flow: Flow = "codes",
               ) -> dict[str, str]:
    """The 4-bit weights that the recipe's block size leaves per channel, each with the reason; none that are held."""
    if options.block is None:
        return {}
    grids = choose(graph, options, decoder, held, flow)
    found = {p.name: why for p in products(graph) if p.name in grids
             and grids[p.name].bits == 4 and (why := unblocked(p, options.block, flow))}
    rest = outside(graph, options, held, flow)
    return found | {name: "no search fits it" for name, bits in rest.items() if bits == 4}


def head(graph: ir.Graph) -> str | None:
    """The weight that makes a decoder's logits; None where they come of no product."""
    known: dict[ir.Node, Product] = {p.node: p for p in products(graph)}
    todo = [v for v in graph.outputs if str(v.name) == LOGITS]
    while todo:
        node = todo.pop().producer()
        if node in known:
            return known[node].name
        if node is not None:
            todo += [v for v in node.inputs[:1] if v is not None]
    return None
