"""What moves elements and computes nothing; views of the input wherever torch has them."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir import tensor_adapters

from edgeforge.torch_ops.read import Inputs, Op, integer, ints, needed, numbers


def _transpose(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    x = needed(inputs, 0)
    return (x.permute(ints(node, "perm", range(x.ndim)[::-1])),)


def _reshape(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """0 is the input's dimension at that place, unless allowzero says that it is 0."""
    x, shape = needed(inputs, 0), numbers(inputs, 1) or []
    if not integer(node, "allowzero", 0):
        shape = [x.shape[i] if size == 0 else size for i, size in enumerate(shape)]
    return (x.reshape(shape),)


def _flatten(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    x, axis = needed(inputs, 0), integer(node, "axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return (x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:])),)


def _squeeze(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    x, axes = needed(inputs, 0), numbers(inputs, 1)
    return (x.squeeze() if axes is None else x.squeeze(axes),)


def _unsqueeze(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    x, axes = needed(inputs, 0), numbers(inputs, 1) or []
    rank = x.ndim + len(axes)
    for axis in sorted(a % rank for a in axes):
        x = x.unsqueeze(axis)
    return (x,)


def _slice(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    x, starts, stops = needed(inputs, 0), numbers(inputs, 1) or [], numbers(inputs, 2) or []
    axes = numbers(inputs, 3)
    steps = numbers(inputs, 4) or [1] * len(starts)
    for axis, start, stop, step in zip(range(len(starts)) if axes is None else axes, starts, stops, steps, strict=True):
        x = _cut(x, axis, start, stop, step)
    return (x,)


def _cut(x: torch.Tensor, axis: int, start: int, stop: int, step: int) -> torch.Tensor:
    """ONNX clamps bounds to the dimension, backwards otherwise than Python; torch knows no step backwards."""
    size = x.shape[axis]
    start, stop = (n + size if n < 0 else n for n in (start, stop))
    if step > 0:
        start = min(max(start, 0), size)
        return x[(slice(None),) * (axis % x.ndim) + (slice(start, min(max(stop, start), size), step),)]
    taken = range(min(max(start, 0), size - 1), min(max(stop, -1), size - 1), step)
    return x.index_select(axis, torch.tensor(list(taken), dtype=torch.int64, device=x.device))


def _split(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """Into pieces of given sizes, or into equal ones of which the last may be smaller."""
    x, axis, sizes = needed(inputs, 0), integer(node, "axis", 0), numbers(inputs, 1)
    if sizes is None:
        whole = x.shape[axis]
        size = -(-whole // integer(node, "num_outputs", len(node.outputs)))
        sizes = [min(size, whole - start) for start in range(0, whole, size)]
    return tuple(torch.split_with_sizes(x, sizes, axis))


def _concat(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    return (torch.cat([needed(inputs, i) for i in range(len(inputs))], integer(node, "axis", 0)),)


def _expand(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """To the shape that x and the given one broadcast to."""
    x = needed(inputs, 0)
    return (x.expand(np.broadcast_shapes(x.shape, numbers(inputs, 1) or [])),)


def _tile(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    return (needed(inputs, 0).repeat(numbers(inputs, 1) or []),)


def _gather(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """x along axis at indices of any shape; negative ones count from the end."""
    x, indices, axis = needed(inputs, 0), needed(inputs, 1), integer(node, "axis", 0) % needed(inputs, 0).ndim
    if not indices.ndim:
        return (x.select(axis, int(indices)),)
    flat = indices.reshape(-1)
    taken = x.index_select(axis, torch.where(flat < 0, flat + x.shape[axis], flat))
    return (taken.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1:]),)


def _cast(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    return (needed(inputs, 0).to(tensor_adapters.to_torch_dtype(ir.DataType(integer(node, "to", 0)))),)


OPS: dict[str, Op] = {
    "Transpose": _transpose, "Reshape": _reshape, "Flatten": _flatten, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze,
    "Slice": _slice, "Split": _split, "Concat": _concat, "Expand": _expand, "Tile": _tile, "Gather": _gather,
    "Cast": _cast}
