"""Between channels and pixels."""

from __future__ import annotations

import onnx_ir as ir
import torch

from edgeforge.torch_ops.read import Inputs, Op, integer, needed, text


def _depth_to_space(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """[N, b * b * C, H, W] -> [N, C, b * H, b * W]; in CRD the block's places lie within a channel's."""
    x, block = needed(inputs, 0), integer(node, "blocksize", 1)
    n, channels, height, width = x.shape
    if text(node, "mode", "DCR") == "DCR":
        blocks = x.reshape(n, block, block, -1, height, width).permute(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, -1, block, block, height, width).permute(0, 1, 4, 2, 5, 3)
    return (blocks.reshape(n, channels // block**2, height * block, width * block),)


def _space_to_depth(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """The opposite of DepthToSpace in DCR."""
    x, block = needed(inputs, 0), integer(node, "blocksize", 1)
    n, channels, height, width = x.shape
    blocks = x.reshape(n, channels, height // block, block, width // block, block).permute(0, 3, 5, 1, 2, 4)
    return (blocks.reshape(n, channels * block**2, height // block, width // block),)


OPS: dict[str, Op] = {"DepthToSpace": _depth_to_space, "SpaceToDepth": _space_to_depth}
