"""How an operator reads its inputs and attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir
import torch

Inputs = Sequence[torch.Tensor | None]
Op = Callable[[ir.Node, Inputs], tuple[torch.Tensor, ...]]
"""node and its inputs (None where an optional one is left out) -> its outputs; inputs are never changed"""


def optional(inputs: Inputs, index: int) -> torch.Tensor | None:
    """An input that may be left out."""
    return inputs[index] if index < len(inputs) else None


def needed(inputs: Inputs, index: int) -> torch.Tensor:
    """An input that ONNX asks for.

    Raises:
        ValueError: it is not there; a valid graph never comes here.
    """
    found = optional(inputs, index)
    if found is None:
        raise ValueError(f"input {index} is missing")
    return found


def numbers(inputs: Inputs, index: int) -> list[int] | None:
    """An integer vector such as a shape or axes; None when it is left out."""
    found = optional(inputs, index)
    return None if found is None else [int(n) for n in found.reshape(-1).tolist()]


def ints(node: ir.Node, name: str, default: Sequence[int]) -> list[int]:
    """An attribute that is a list of integers."""
    return list(node.attributes.get_ints(name, default) or ())


def integer(node: ir.Node, name: str, default: int) -> int:
    found = node.attributes.get_int(name, default)
    return default if found is None else found


def number(node: ir.Node, name: str, default: float) -> float:
    found = node.attributes.get_float(name, default)
    return default if found is None else found


def text(node: ir.Node, name: str, default: str) -> str:
    return node.attributes.get_string(name, default) or default


def unary(function: Callable[[torch.Tensor], torch.Tensor]) -> Op:
    """An operator without attributes on one input."""
    return lambda node, inputs: (function(needed(inputs, 0)),)


def binary(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Op:
    """An operator without attributes on two inputs that broadcast as numpy's do."""
    return lambda node, inputs: (function(needed(inputs, 0), needed(inputs, 1)),)
