"""Matrix products."""

from __future__ import annotations

import onnx_ir as ir
import torch

from edgeforge.torch_ops.read import Inputs, Op, binary, integer, needed, number, optional


def _gemm(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """alpha * A' B' + beta * C."""
    a, b = (x.T if integer(node, name, 0) else x
            for x, name in ((needed(inputs, 0), "transA"), (needed(inputs, 1), "transB")))
    product, alpha, beta = a @ b, number(node, "alpha", 1.0), number(node, "beta", 1.0)
    if alpha != 1:
        product = alpha * product
    bias = optional(inputs, 2)
    return (product if bias is None else product + (bias if beta == 1 else beta * bias),)


OPS: dict[str, Op] = {"MatMul": binary(torch.matmul), "Gemm": _gemm}
