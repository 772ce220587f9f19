"""Reductions over axes, and running sums."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import torch

from edgeforge.torch_ops.read import Inputs, Op, integer, needed, numbers

_Reduce = Callable[[torch.Tensor, list[int], bool], torch.Tensor]


def _reduction(function: _Reduce) -> Op:
    """Over all axes when none are given, unless noop_with_empty_axes says: over none."""
    def op(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        x, axes = needed(inputs, 0), numbers(inputs, 1) or []
        if not axes and integer(node, "noop_with_empty_axes", 0):
            return (function(x.unsqueeze(-1), [-1], False),)
        return (function(x, axes or list(range(x.ndim)), bool(integer(node, "keepdims", 1))) if x.ndim else
                function(x.reshape(1), [0], False),)
    return op


def _sum(x: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    """Integers keep their width, which torch would widen."""
    return x.sum(axes, keepdim=keep, dtype=x.dtype)


def _mean(x: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    """Of integers: towards zero."""
    if x.is_floating_point():
        return x.mean(axes, keepdim=keep)
    total = _sum(x, axes, keep)
    return torch.div(total, x.numel() // max(total.numel(), 1), rounding_mode="trunc")


def _prod(x: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    for axis in sorted((a % x.ndim for a in axes), reverse=True):
        x = x.prod(axis, keepdim=keep, dtype=x.dtype)
    return x


def _arg_max(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """The first of equal ones, or the last with select_last_index."""
    x, axis, keep = needed(inputs, 0), integer(node, "axis", 0), bool(integer(node, "keepdims", 1))
    if integer(node, "select_last_index", 0):
        return (x.shape[axis] - 1 - x.flip(axis).argmax(axis, keep),)
    return (x.argmax(axis, keep),)


def _cum_sum(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """Along an axis, from its end when reverse; without the element itself when exclusive."""
    x, axis = needed(inputs, 0), (numbers(inputs, 1) or [0])[0]
    if integer(node, "reverse", 0):
        x = x.flip(axis)
    total = x.cumsum(axis, dtype=x.dtype)
    if integer(node, "exclusive", 0):
        size = x.shape[axis]
        total = torch.cat((torch.zeros_like(x.narrow(axis, 0, 1)), total.narrow(axis, 0, size - 1)), axis)
    return (total.flip(axis) if integer(node, "reverse", 0) else total,)


OPS: dict[str, Op] = {
    "ReduceSum": _reduction(_sum), "ReduceMean": _reduction(_mean), "ReduceProd": _reduction(_prod),
    "ReduceMax": _reduction(lambda x, axes, keep: x.amax(axes, keep)),
    "ReduceMin": _reduction(lambda x, axes, keep: x.amin(axes, keep)),
    "ReduceL1": _reduction(lambda x, axes, keep: _sum(x.abs(), axes, keep)),
    "ReduceL2": _reduction(lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keep)),
    "ReduceSumSquare": _reduction(lambda x, axes, keep: _sum(x * x, axes, keep)),
    "ReduceLogSum": _reduction(lambda x, axes, keep: _sum(x, axes, keep).log()),
    "ReduceLogSumExp": _reduction(lambda x, axes, keep: x.logsumexp(axes, keep)),
    "ArgMax": _arg_max, "CumSum": _cum_sum}
