"""ONNX operators as torch functions: what evaluates a graph, or a part of it, with gradients.

The semantics are those of opset 23 and 24 (https://onnx.ai/onnx/operators/). Inputs are never changed, and what
comes out may be a view of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir
import torch

from edgeforge.errors import UnsupportedError
from edgeforge.torch_ops import (
    activation,
    conv,
    elementwise,
    norm,
    pad,
    pool,
    products,
    reduction,
    resize,
    rotary,
    shape,
    space,
)
from edgeforge.torch_ops.read import Inputs, Op

OPS: Mapping[str, Op] = MappingProxyType(
    {name: op for room in (activation, conv, elementwise, norm, pad, pool, products, reduction, resize, rotary, shape,
                           space) for name, op in room.OPS.items()})
"""by op type of ONNX's own domain"""


def evaluate(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """A node's outputs.

    Args:
        inputs: one a node input, None where an optional one is left out; shapes, axes and the like as int64.

    Raises:
        UnsupportedError: an operator, or a mode of one, that is not there.
    """
    if not _known(node):
        raise UnsupportedError(f"{node.outputs[0].name}: op {_name(node)} is not evaluated in torch",
                               "export the model without it")
    return OPS[node.op_type](node, inputs)


def _known(node: ir.Node) -> bool:
    return node.domain in ("", "ai.onnx") and node.op_type in OPS


def _name(node: ir.Node) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
