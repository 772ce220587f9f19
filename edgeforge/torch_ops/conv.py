"""Convolutions over one to three spatial dimensions.

A 1x1 convolution needs no path of its own: torch's takes the time of a matrix product, also on views of
[1, 1, T, C] (torch 2.13, 1 to 1000 tokens, forward and backward).
"""

from __future__ import annotations

import onnx_ir as ir
import torch
from torch.nn import functional

from edgeforge.torch_ops.read import Inputs, Op, integer, ints, needed, optional, text
from edgeforge.torch_ops.windows import pad, windows

CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TURNED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}


def _conv(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    x, weight, bias = needed(inputs, 0), needed(inputs, 1), optional(inputs, 2)
    at = windows(node, x.shape[2:], weight.shape[2:])
    border = at.begin
    if at.begin != at.end:
        x, border = pad(x, at.begin, at.end), [0] * len(at.begin)
    return (CONV[x.ndim - 2](x, weight, bias, at.strides, border, at.dilations, integer(node, "group", 1)),)


def _conv_transpose(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """Everything that the kernels reach, cut or widened to what padding, output_padding or output_shape ask for."""
    x, weight, bias = needed(inputs, 0), needed(inputs, 1), optional(inputs, 2)
    count = x.ndim - 2
    strides, dilations = (ints(node, name, [1] * count) for name in ("strides", "dilations"))
    whole = _TURNED[count](x, weight, None, strides, 0, 0, integer(node, "group", 1), dilations)
    extra = ints(node, "output_padding", [0] * count)
    begin, end = _crop(node, x, [n + e for n, e in zip(whole.shape[2:], extra, strict=True)])
    made = pad(whole, [-n for n in begin], [e - n for e, n in zip(extra, end, strict=True)])
    return (made if bias is None else made + bias.reshape(-1, *[1] * count),)


def _crop(node: ir.Node, x: torch.Tensor, reached: list[int]) -> tuple[list[int], list[int]]:
    """What falls away in front and behind, of so many elements that the kernels reach."""
    count, mode = len(reached), text(node, "auto_pad", "NOTSET")
    asked = ints(node, "output_shape", ())
    if not asked and mode in ("NOTSET", "VALID"):
        pads = ints(node, "pads", [0] * 2 * count)
        return pads[:count], pads[count:]
    if not asked:
        asked = [n * s for n, s in zip(x.shape[2:], ints(node, "strides", [1] * count), strict=True)]
    total = [max(r - a, 0) for r, a in zip(reached, asked[-count:], strict=True)]
    begin = [t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in total]
    return begin, [t - b for t, b in zip(total, begin, strict=True)]


OPS: dict[str, Op] = {"Conv": _conv, "ConvTranspose": _conv_transpose}
