"""RotaryEmbedding of ONNX opset 23."""

from __future__ import annotations

import onnx_ir as ir
import torch

from edgeforge.torch_ops.read import Inputs, Op, integer, needed, optional


def _rotary(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """x [B, heads, S, d], or [B, S, heads * d] with num_heads; cos and sin [B, S, r/2], or tables by position.

    The first r of d dimensions turn, the others pass: halves, or even and odd ones when interleaved.
    """
    given, cos, sin = (needed(inputs, i) for i in range(3))
    positions = optional(inputs, 3)
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    x = given
    if given.ndim == 3:
        x = given.reshape(*given.shape[:2], integer(node, "num_heads", 1), -1).transpose(1, 2)
    width = integer(node, "rotary_embedding_dim", 0) or x.shape[-1]
    turned = _turn(x[..., :width], cos.unsqueeze(1), sin.unsqueeze(1), bool(integer(node, "interleaved", 0)))
    y = turned if width == x.shape[-1] else torch.cat((turned, x[..., width:]), -1)
    return (y if given.ndim == 4 else y.transpose(1, 2).flatten(2),)


def _turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    low, high = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    pair = low * cos - high * sin, high * cos + low * sin
    return torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)


OPS: dict[str, Op] = {"RotaryEmbedding": _rotary}
