"""Convolutions over one to three spatial dimensions.

A 1x1 convolution needs no path of its own: torch's takes the time of a matrix product, also on views of
[1, 1, T, C] (torch 2.13, 1 to 1000 tokens, forward and backward).
"""

from __future__ import annotations

import onnx_ir as ir
import torch
from torch.nn import functional

from edgeforge.torch_ops.read import Inputs, Op, integer, needed, optional
from edgeforge.torch_ops.windows import pad, windows

_CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


def _conv(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    x, weight, bias = needed(inputs, 0), needed(inputs, 1), optional(inputs, 2)
    at = windows(node, x.shape[2:], weight.shape[2:])
    border = at.begin
    if at.begin != at.end:
        x, border = pad(x, at.begin, at.end), [0] * len(at.begin)
    return (_CONV[x.ndim - 2](x, weight, bias, at.strides, border, at.dilations, integer(node, "group", 1)),)


OPS: dict[str, Op] = {"Conv": _conv}
