"""Activation functions."""

from __future__ import annotations

import onnx_ir as ir
import torch
from torch.nn import functional

from edgeforge.torch_ops.read import Inputs, Op, binary, needed, number, text, unary


def _gelu(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    return (functional.gelu(needed(inputs, 0), approximate=text(node, "approximate", "none")),)


def _swish(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    x, alpha = needed(inputs, 0), number(node, "alpha", 1.0)
    return (functional.silu(x) if alpha == 1 else x * torch.sigmoid(alpha * x),)


def _leaky_relu(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    return (functional.leaky_relu(needed(inputs, 0), number(node, "alpha", 0.01)),)


def _elu(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    return (functional.elu(needed(inputs, 0), number(node, "alpha", 1.0)),)


def _hard_sigmoid(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    x = needed(inputs, 0)
    return ((number(node, "alpha", 0.2) * x + number(node, "beta", 0.5)).clamp(0, 1),)


def _prelu(x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """The slope broadcasts to x as in arithmetic: torch's own wants one a channel."""
    return torch.where(x < 0, slope * x, x)


OPS: dict[str, Op] = {
    "Sigmoid": unary(torch.sigmoid), "Tanh": unary(torch.tanh), "Relu": unary(torch.relu), "Gelu": _gelu,
    "Swish": _swish, "LeakyRelu": _leaky_relu, "PRelu": binary(_prelu), "Elu": _elu, "HardSigmoid": _hard_sigmoid,
    "HardSwish": unary(functional.hardswish), "Softplus": unary(functional.softplus)}
