"""W8A8: the input of a product on a grid of 8 bits with zero point 0, so that TensorRT multiplies codes by codes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeforge import float8
from edgeforge.backends.tensorrt import weights
from edgeforge.encodings import Table
from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit

_BITS = 8


def write(graph: ir.Graph, table: Table) -> list[str]:
    """In place: Quantize and Dequantize before every product of 8-bit weights whose input has 8 bits of the same kind.

    Returns those inputs. A product with 4-bit weights multiplies float16: TensorRT would unpack W4A8 first. So does one
    that reads the embedding as it is (OLMo2's first). Before weights.write.

    Raises:
        UnsupportedError: a zero point, or a scale that float16 lacks (by the value's name).
    """
    made: dict[ir.Value, ir.Value] = {}
    for product in weights.products(graph):
        value = product.x
        found = [table[name] for v in (value, product.weight) if (name := str(v.name)) in table]
        if [e.bits for e in found] != [_BITS, _BITS] or found[0].e4m3 != found[1].e4m3 or _is_embedding(value):
            continue
        if value not in made:
            made[value] = _pair(graph, product.node, value, table)
        product.node.replace_input_with(0, made[value])
    return [str(v.name) for v in made]


def _is_embedding(value: ir.Value) -> bool:
    """Of a row that is read and then rounded TensorRT keeps a table of rounded rows, beside the float16 one."""
    table = edit.producer(value, "Gather")
    return table is not None and table.inputs[0] is not None and table.inputs[0].is_initializer()


def _pair(graph: ir.Graph, anchor: ir.Node, value: ir.Value, table: Table) -> ir.Value:
    name, encoding = str(value.name), table[str(value.name)]
    if not encoding.symmetric or encoding.scale.ndim:
        raise UnsupportedError(f"{name}: its grid has a zero point or a scale a channel, which TensorRT does not take",
                               "calibrate it symmetric, with one scale")
    step = weights.near_half(name, encoding.scale, "leave its weight with 16 bits")
    scale = edit.initializer(graph, f"{name}/scale", np.array(step, np.float32))
    zeros = float8.stored(np.array(0)) if encoding.e4m3 else np.zeros((), np.int8)
    zero = edit.initializer(graph, f"{name}/zero_point", zeros)
    shape = edit.known_dims(value)
    codes = edit.node_before(anchor, "QuantizeLinear", [value, scale, zero], f"{name}/q", shape)
    codes.type = ir.TensorType(ir.DataType.FLOAT8E4M3FN if encoding.e4m3 else ir.DataType.INT8)
    real = edit.node_before(anchor, "DequantizeLinear", [codes, scale, zero], f"{name}/dq", shape)
    real.type = ir.TensorType(ir.DataType.FLOAT)
    return real
