"""Scales that are too small beside the grids around them.

An integer product is brought to its output's grid by one multiplier a channel, input scale x weight scale / output
scale, and hardware holds it with so many bits. Below the smallest one that it can hold a channel saturates: worse than
losing it. Such a channel's whole output is less than one code, so a coarser scale costs nothing (case C32).

A bias has 32 bits on the grid of its product, input scale x weight scale: where the weights are small, and above all
where they have 16 bits, it would end short of what it says (with weights of 0.05 beside biases of 1 an output was left
with 1 dB). A coarser scale costs the weights a bit or two of their sixteen.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from edgeforge.encodings import Encoding, Floats, Table
from edgeforge.graph import edit
from edgeforge.quantize import roles

_BIAS = float(1 << 30)
"""largest code of a bias: half of what 32 bits hold, the rest is for what is added to it"""


_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def raised(graph: ir.Graph, table: Table, least: float) -> Table:
    """The table with weight scales, and norms' gains, large enough for their biases, and for multipliers of at least
    `least`."""
    entries = dict(table)
    for node in graph:
        if node.op_type not in (*_PRODUCTS, *roles.BIASED):
            continue
        value = _parameter(node)
        name = str(value.name) if value is not None else ""
        weight, x, y = (entries.get(n) for n in (name, _name(node.inputs[0]), _name(node.outputs[0])))
        if weight is None or x is None or y is None:
            continue
        floor = _for_bias(node, weight, float(x.scale))
        if node.op_type in _PRODUCTS:
            floor = np.maximum(floor, np.float32(least * float(y.scale) / float(x.scale)))
        if (weight.scale < floor).any():
            entries[name] = replace(weight, scale=np.asarray(np.maximum(weight.scale, floor)))
    return Table(entries)


def _name(value: ir.Value | None) -> str:
    return str(value.name) if value is not None else ""


def _parameter(node: ir.Node) -> ir.Value | None:
    """What node multiplies by, when that is a parameter, on its way through a Transpose too."""
    value = node.inputs[1]
    turn = edit.producer(value, "Transpose")
    value = turn.inputs[0] if turn is not None else value
    return value if value is not None and value.is_initializer() else None


def _for_bias(node: ir.Node, weight: Encoding, step: float) -> Floats:
    """Scales at which the bias fits, in the shape of weight's own; step: of what node reads."""
    bias = edit.constant(node.inputs[2]) if node.op_type in roles.BIASED and len(node.inputs) > 2 else None
    if bias is None or (weight.block is not None and weight.block_scale is None):  # beside float blocks none has a grid
        return np.zeros_like(weight.scale)
    sizes = np.abs(bias.astype(np.float64)).reshape(-1)
    most = sizes.reshape(weight.scale.shape) if sizes.size == weight.scale.size else np.full_like(
        weight.scale, sizes.max(initial=0))
    return np.asarray(most / (_BIAS * step), np.float32)
