"""Where windows of a convolution or pool stand: strides, dilations, and padding explicit or automatic.

One entry a spatial dimension everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir
import torch
from torch.nn import functional

from edgeforge.torch_ops.read import integer, ints, text


@dataclass(frozen=True)
class Windows:
    """begin, end: padding in front and behind, as ONNX counts it."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begin: list[int]
    end: list[int]

    def extents(self) -> list[int]:
        """Elements from a window's first to its last."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]


def windows(node: ir.Node, size: Sequence[int], kernel: Sequence[int]) -> Windows:
    """The windows of node over an input of this spatial size."""
    count = len(size)
    strides, dilations = (ints(node, name, [1] * count) for name in ("strides", "dilations"))
    pads, mode = ints(node, "pads", [0] * 2 * count), text(node, "auto_pad", "NOTSET")
    made = Windows(list(kernel), strides, dilations, pads[:count], pads[count:])
    if mode == "NOTSET":
        return made
    total = [0] * count
    if mode != "VALID":  # SAME: as many outputs as strides fit in, the odd element behind (UPPER) or in front
        total = [max((-(-n // s) - 1) * s + e - n, 0)
                 for n, s, e in zip(size, strides, made.extents(), strict=True)]
    begin = [t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in total]
    end = [t - b for t, b in zip(total, begin, strict=True)]
    return Windows(list(kernel), strides, dilations, begin, end)


def fill(node: ir.Node, size: Sequence[int], at: Windows) -> list[int]:
    """Elements behind the input (negative: cut off) after which the last window ends exactly with it.

    With ceil_mode a window that is not full counts too, but not one that starts behind the input.
    """
    made = []
    for n, s, b, e, extent in zip(size, at.strides, at.begin, at.end, at.extents(), strict=True):
        steps = n + b + e - extent
        last = -(-steps // s) if integer(node, "ceil_mode", 0) else steps // s
        if last * s >= n + b:
            last -= 1
        made.append(last * s + extent - n - b)
    return made


def pad(x: torch.Tensor, begin: Sequence[int], end: Sequence[int], value: float = 0.0) -> torch.Tensor:
    """x with its last dimensions padded, or cut where negative."""
    if not any(begin) and not any(end):
        return x
    return functional.pad(x, [n for pair in zip(reversed(begin), reversed(end), strict=True) for n in pair],
                          value=value)
