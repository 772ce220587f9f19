"""Pooling over one to three spatial dimensions."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch
from torch.nn import functional

from edgeforge.errors import UnsupportedError
from edgeforge.torch_ops.conv import CONV
from edgeforge.torch_ops.read import Inputs, Op, integer, ints, needed, unary
from edgeforge.torch_ops.windows import Windows, fill, pad, windows

_MAX = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_MEAN = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


def _max_pool(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """Raises UnsupportedError where the second output, the maxima's places, is asked for."""
    if len(node.outputs) > 1:
        raise UnsupportedError(f"{node.outputs[0].name}: MaxPool that tells where its maxima lie",
                               "export the model without return_indices")
    x = needed(inputs, 0)
    at = windows(node, x.shape[2:], ints(node, "kernel_shape", ()))
    padded = pad(x, at.begin, fill(node, x.shape[2:], at), -math.inf)
    return (_MAX[x.ndim - 2](padded, at.kernel, at.strides, 0, at.dilations),)


def _average_pool(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """A window's sum over the elements in it, the padding's zeros among them with count_include_pad."""
    x = needed(inputs, 0)
    at = windows(node, x.shape[2:], ints(node, "kernel_shape", ()))
    behind = fill(node, x.shape[2:], at)
    means = _means(pad(x, at.begin, behind), at)
    ones = torch.ones(1, 1, *x.shape[2:], dtype=x.dtype, device=x.device)
    if integer(node, "count_include_pad", 0):
        ones = pad(pad(ones, at.begin, at.end, 1.0), [0] * len(behind),
                   [b - e for b, e in zip(behind, at.end, strict=True)])
    else:
        ones = pad(ones, at.begin, behind)
    full = ones.numel() == int(ones.sum())
    return (means if full else means / _means(ones, at),)


def _means(x: torch.Tensor, at: Windows) -> torch.Tensor:
    if set(at.dilations) == {1}:
        return _MEAN[x.ndim - 2](x, at.kernel, at.strides)
    even = torch.full((1, 1, *at.kernel), 1 / math.prod(at.kernel), dtype=x.dtype, device=x.device)
    found = CONV[x.ndim - 2](x.flatten(0, 1).unsqueeze(1), even, None, at.strides, 0, at.dilations)
    return found.reshape(*x.shape[:2], *found.shape[2:])


def _spatial(x: torch.Tensor) -> list[int]:
    return list(range(2, x.ndim))


OPS: dict[str, Op] = {
    "MaxPool": _max_pool, "AveragePool": _average_pool,
    "GlobalMaxPool": unary(lambda x: x.amax(_spatial(x), keepdim=True)),
    "GlobalAveragePool": unary(lambda x: x.mean(_spatial(x), keepdim=True))}
