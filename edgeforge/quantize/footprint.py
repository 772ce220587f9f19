"""What the weights of a graph take, read off its table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from edgeforge.encoding import Encoding
from edgeforge.graph import edit
from edgeforge.quantize import roles

_FEW = 0.05
"""share of weights with 4 bits from which on it is they that limit a model: each has 256 times the noise of 8 bits"""


def bits_per_weight(graph: ir.Graph, table: Mapping[str, Encoding]) -> float:
    """Bits of codes and steps as they are shipped, a weight: float32 a channel (or block), 4 bits an integer."""
    stored = count = 0
    for size, encoding in _weights(graph, table):
        blocks = 0 if encoding.block_scale is None else 4 * encoding.block_scale.size
        stored += size * encoding.bits + 32 * encoding.scale.size + blocks
        count += size
    return stored / max(count, 1)


def four_bits(graph: ir.Graph, table: Mapping[str, Encoding]) -> bool:
    """Do so many of the weights have 4 bits that the model has to be judged as one of 4-bit weights?"""
    sizes = [(size, encoding.bits) for size, encoding in _weights(graph, table)]
    return sum(size for size, bits in sizes if bits == 4) > _FEW * sum(size for size, _ in sizes)


def _weights(graph: ir.Graph, table: Mapping[str, Encoding]) -> Iterator[tuple[int, Encoding]]:
    for name, value in roles.weights(graph).items():
        yield math.prod(int(d) for d in edit.known_dims(value)), table[name]
