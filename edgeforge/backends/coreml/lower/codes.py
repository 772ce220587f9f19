"""Where what flows becomes whole numbers and back: W8A8."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeforge.backends.coreml import laid, mil
from edgeforge.backends.coreml.emit import Lowering, Work, path
from edgeforge.backends.coreml.laid import Laid
from edgeforge.backends.coreml.mil import mb
from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit

_CODES = ir.DataType.INT8


def _quantize(node: ir.Node, work: Work) -> Laid:
    x = work.read(node)
    if node.outputs[0].dtype != _CODES or _zero(node):
        raise UnsupportedError(f"{path(node)}: codes of {node.outputs[0].dtype}, or a zero point",
                               "Core ML multiplies int8 codes around zero")
    order = laid.natural(x.rank)
    made = mb.quantize(input=work.arranged(x, order), scale=_scale(node), output_dtype=mil.INT8, name=work.named(node))
    return Laid(made, order, x.shape)


def _dequantize(node: ir.Node, work: Work) -> Laid:
    codes = work.read(node)
    made = mb.dequantize(input=codes.var, scale=_scale(node), name=work.named(node))
    return Laid(made, codes.order, codes.shape)


def _scale(node: ir.Node) -> np.float16:
    """One for all tokens and channels, a float16 to the last bit."""
    number = edit.scalar(node.inputs[1])
    if number is None or np.float32(np.float16(number)) != np.float32(number):
        raise UnsupportedError(f"{path(node)}: its scale is no single float16 number", "quantize it for this chip")
    return np.float16(number)


def _zero(node: ir.Node) -> bool:
    return len(node.inputs) > 2 and edit.scalar(node.inputs[2]) != 0


TABLE: dict[str, Lowering] = {"QuantizeLinear": _quantize, "DequantizeLinear": _dequantize}
