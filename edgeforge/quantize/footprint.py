"""What the weights of a graph take, read off its table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from edgeforge.encoding import Encoding
from edgeforge.graph import edit
from edgeforge.quantize import budget, roles
from edgeforge.quantize.weights.palette import Palette

_FEW = 0.05
"""share of weights with 4 bits from which on it is they that limit a model: each has 256 times the noise of 8 bits"""
_FLOAT = 16
"""bits of a weight without an encoding"""


def stored_bits(count: int, encoding: Encoding | Palette, half: bool = False) -> int:
    """Bits of a weight of count codes (see budget.stored_bits): with float blocks, each has a step of its own; of a
    palette, codes and tables."""
    if isinstance(encoding, Palette):
        return encoding.stored
    steps, whole = encoding.scale.size, encoding.block_scale is not None
    return budget.stored_bits(count // steps, steps, encoding.bits, encoding.block if whole else None, half)


def bits_per_weight(graph: ir.Graph, table: Mapping[str, Encoding | Palette], half: bool = False) -> float:
    """Stored bits of all weights over their number. half: see stored_bits."""
    every = list(_weights(graph, table))
    stored = sum(count * _FLOAT if e is None else stored_bits(count, e, half) for count, e in every)
    return stored / max(sum(count for count, _ in every), 1)


def four_bits(graph: ir.Graph, table: Mapping[str, Encoding | Palette]) -> bool:
    """Do so many of the weights have 4 bits that the model has to be judged as one of 4-bit weights?"""
    every = list(_weights(graph, table))
    return sum(count for count, e in every if e is not None and e.bits == 4) > _FEW * sum(count for count, _ in every)


def _weights(graph: ir.Graph, table: Mapping[str, Encoding | Palette],
             ) -> Iterator[tuple[int, Encoding | Palette | None]]:
    for name, value in roles.weights(graph).items():
        yield math.prod(int(d) for d in edit.known_dims(value)), table.get(name)
