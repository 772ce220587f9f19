"""Arithmetic, comparison and logic, element by element; both operands broadcast as numpy's do."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import onnx_ir as ir
import torch

from edgeforge.torch_ops.read import Inputs, Op, binary, needed, optional, unary


def _div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Integers are divided towards zero."""
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _pow(base: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """The result has the base's type, whatever the exponent's."""
    if base.is_floating_point():
        return base.pow(exponent)
    return base.double().pow(exponent.double()).to(base.dtype)


def _all(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Op:
    """Any number of inputs."""
    def op(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        return (reduce(function, [needed(inputs, i) for i in range(len(inputs))]),)
    return op


def _clip(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    x, low, high = needed(inputs, 0), optional(inputs, 1), optional(inputs, 2)
    return (x if low is None and high is None else torch.clamp(x, low, high),)


def _where(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    return (torch.where(needed(inputs, 0), needed(inputs, 1), needed(inputs, 2)),)


OPS: dict[str, Op] = {
    "Add": binary(torch.add), "Sub": binary(torch.sub), "Mul": binary(torch.mul), "Div": binary(_div),
    "Pow": binary(_pow), "Min": _all(torch.minimum), "Max": _all(torch.maximum), "Clip": _clip,
    "Neg": unary(torch.neg), "Abs": unary(torch.abs), "Sign": unary(torch.sign), "Floor": unary(torch.floor),
    "Sqrt": unary(torch.sqrt), "Reciprocal": unary(torch.reciprocal), "Exp": unary(torch.exp),
    "Log": unary(torch.log), "Erf": unary(torch.erf), "Sin": unary(torch.sin), "Cos": unary(torch.cos),
    "Identity": unary(lambda x: x), "Where": _where,
    "Equal": binary(torch.eq), "Greater": binary(torch.gt), "Less": binary(torch.lt),
    "GreaterOrEqual": binary(torch.ge), "LessOrEqual": binary(torch.le),
    "And": binary(torch.logical_and), "Or": binary(torch.logical_or), "Not": unary(torch.logical_not)}
