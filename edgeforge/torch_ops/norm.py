"""Normalisations, all in float32."""

from __future__ import annotations

import onnx_ir as ir
import torch
from torch.nn import functional

from edgeforge.torch_ops.read import Inputs, Op, integer, needed, number, optional


def _softmax(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    return (functional.softmax(needed(inputs, 0), integer(node, "axis", -1)),)


def _log_softmax(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    return (functional.log_softmax(needed(inputs, 0), integer(node, "axis", -1)),)


def _rms_norm(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """x / sqrt(mean(x^2) + epsilon) * scale, the mean over axis and all behind it."""
    x = needed(inputs, 0)
    over = list(range(integer(node, "axis", -1) % x.ndim, x.ndim))
    power = x.square().mean(over, keepdim=True)
    return (x * torch.rsqrt(power + number(node, "epsilon", 1e-5)) * needed(inputs, 1),)


def _layer_norm(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """Over axis and all behind it; the second and third output, where asked for, are mean and 1 / deviation."""
    x, scale, bias = needed(inputs, 0), needed(inputs, 1), optional(inputs, 2)
    axis, epsilon = integer(node, "axis", -1) % x.ndim, number(node, "epsilon", 1e-5)
    size = x.shape[axis:]
    if scale.shape == size and (bias is None or bias.shape == size):
        y = functional.layer_norm(x, size, scale, bias, epsilon)
    else:
        y = functional.layer_norm(x, size, eps=epsilon) * scale
        y = y if bias is None else y + bias
    if len(node.outputs) == 1:
        return (y,)
    variance, mean = torch.var_mean(x, list(range(axis, x.ndim)), correction=0, keepdim=True)
    return y, mean, torch.rsqrt(variance + epsilon)


def _instance_norm(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """Each channel of each sample over its pixels (also over a single one, which torch's own refuses)."""
    x = needed(inputs, 0)
    scale, bias = (needed(inputs, i).reshape(-1, *[1] * (x.ndim - 2)) for i in (1, 2))
    return (functional.layer_norm(x, x.shape[2:], eps=number(node, "epsilon", 1e-5)) * scale + bias,)


def _lp_norm(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """x / |x|_p along axis; zeros stay zeros."""
    tiny = torch.finfo(torch.float32).tiny
    return (functional.normalize(needed(inputs, 0), integer(node, "p", 2), integer(node, "axis", -1), eps=tiny),)


OPS: dict[str, Op] = {
    "Softmax": _softmax, "LogSoftmax": _log_softmax, "RMSNormalization": _rms_norm,
    "LayerNormalization": _layer_norm, "InstanceNormalization": _instance_norm, "LpNormalization": _lp_norm}
