"""Pad, in every mode."""

from __future__ import annotations

import onnx_ir as ir
import torch
from torch.nn import functional

from edgeforge.torch_ops.read import Inputs, Op, needed, numbers, optional, text


def _pad(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """Negative counts cut off."""
    x, pads, value, axes = needed(inputs, 0), numbers(inputs, 1) or [], optional(inputs, 2), numbers(inputs, 3)
    axes = list(range(x.ndim)) if axes is None else [a % x.ndim for a in axes]
    around = dict(zip(axes, zip(pads[:len(axes)], pads[len(axes):], strict=True), strict=True))
    mode = text(node, "mode", "constant")
    if mode == "constant":
        flat = [n for axis in reversed(range(x.ndim)) for n in around.get(axis, (0, 0))]
        return (functional.pad(x, flat, value=0 if value is None else value.item()),)
    for axis, (begin, end) in around.items():
        if begin or end:
            x = x.index_select(axis, _source(mode, x.shape[axis], begin, end).to(x.device))
    return (x,)


def _source(mode: str, size: int, begin: int, end: int) -> torch.Tensor:
    """Which element stands at each place."""
    place = torch.arange(-begin, size + end)
    if mode == "edge":
        return place.clamp(0, size - 1)
    if mode == "wrap":
        return place % size
    period = max(2 * (size - 1), 1)
    return size - 1 - (place % period - (size - 1)).abs()


OPS: dict[str, Op] = {"Pad": _pad}
