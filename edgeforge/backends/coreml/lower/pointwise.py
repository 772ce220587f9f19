"""Ops that take element by element, and softmax: in the order in which their largest operand lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeforge.backends.coreml.emit import Lowering, Work, path, static
from edgeforge.backends.coreml.laid import Laid, Order
from edgeforge.backends.coreml.mil import mb
from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit

_TWO: dict[str, Callable[..., Any]] = {"Add": mb.add, "Sub": mb.sub, "Mul": mb.mul, "Div": mb.real_div}
_ONE: dict[str, Callable[..., Any]] = {"Sigmoid": mb.sigmoid, "Tanh": mb.tanh, "Relu": mb.relu, "Erf": mb.erf,
                                       "Sqrt": mb.sqrt, "Abs": mb.abs}


def common(node: ir.Node, work: Work) -> Order:
    """The order of node's largest computed input, the first of equal ones, for a value of the output's rank."""
    rank = len(static(node.outputs[0]))
    inputs = [work.read(node, i) for i, v in enumerate(node.inputs) if v is not None and edit.constant(v) is None]
    return max(inputs, key=lambda v: v.size).lifted(rank).order


def swish(node: ir.Node) -> bool:
    """A Sigmoid that only its own argument is multiplied by."""
    user = edit.only_user(node.outputs[0])
    return (node.op_type == "Sigmoid" and user is not None and user.op_type == "Mul"
            and node.inputs[0] in user.inputs)


def _binary(node: ir.Node, work: Work) -> Laid:
    gate = next((n for n in (edit.producer(v, "Sigmoid") for v in node.inputs) if n is not None and swish(n)), None)
    if node.op_type == "Mul" and gate is not None:
        x = work.read(gate)
        return Laid(mb.silu(x=x.var, name=work.named(node)), x.order, x.shape)
    shape, order = static(node.outputs[0]), common(node, work)
    x, y = (work.operand(node, i, len(shape), order) for i in (0, 1))
    return Laid(_TWO[node.op_type](x=x, y=y, name=work.named(node)), order, shape)


def _unary(node: ir.Node, work: Work) -> Laid:
    x = work.read(node)
    if swish(node):
        return x  # its one reader makes both
    return Laid(_ONE[node.op_type](x=x.var, name=work.named(node)), x.order, x.shape)


def _negate(node: ir.Node, work: Work) -> Laid:
    x = work.read(node)
    return Laid(mb.mul(x=x.var, y=np.float16(-1), name=work.named(node)), x.order, x.shape)


def _gelu(node: ir.Node, work: Work) -> Laid:
    x, kind = work.read(node), node.attributes.get("approximate")
    mode = "TANH_APPROXIMATION" if kind is not None and kind.as_string() == "tanh" else "EXACT"
    return Laid(mb.gelu(x=x.var, mode=mode, name=work.named(node)), x.order, x.shape)


def _softmax(node: ir.Node, work: Work) -> Laid:
    x, axis = work.read(node), node.attributes.get("axis")
    place = x.place(axis.as_int() if axis is not None else -1)
    return Laid(mb.softmax(x=x.var, axis=place, name=work.named(node)), x.order, x.shape)


def _power(node: ir.Node, work: Work) -> Laid:
    """pow of a negative base is NaN on hardware that takes logarithms: whole powers are products."""
    x, number = work.read(node), edit.scalar(node.inputs[1])
    if number not in (2.0, 3.0):
        raise UnsupportedError(f"{path(node)}: Pow with the exponent {number}", "2 and 3 are lowered")
    square = mb.mul(x=x.var, y=x.var)
    made = square if number == 2.0 else mb.mul(x=square, y=x.var)
    return Laid(made, x.order, x.shape)


TABLE: dict[str, Lowering] = {**dict.fromkeys(("Add", "Sub", "Mul", "Div"), _binary), **dict.fromkeys(_ONE, _unary),
                              "Neg": _negate, "Gelu": _gelu, "Softmax": _softmax, "Pow": _power}
