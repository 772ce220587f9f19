"""nn.Linear as a 1x1 convolution: the form that HTP and the ANE run fastest."""

from __future__ import annotations

import torch
from torch import nn


class Conv1x1(nn.Conv2d):
    """A Linear on [B, S, in] -> [B, S, out], computed as Conv2d on [B, in, 1, S].

    It stays an nn.Conv2d and takes the Linear's own parameter (viewed as [out, in, 1, 1]), so tools
    still see a convolution and the parameter keeps its module path.
    """

    def __init__(self, linear: nn.Linear) -> None:
        with torch.device("meta"):
            super().__init__(linear.in_features, linear.out_features, 1, bias=linear.bias is not None)
        self.weight = nn.Parameter(linear.weight.data[:, :, None, None], requires_grad=False)
        if linear.bias is not None:
            self.bias = nn.Parameter(linear.bias.data, requires_grad=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        y = super().forward(input.unsqueeze(1).permute(0, 3, 1, 2))
        return y.permute(0, 2, 3, 1).squeeze(1)


def linears_to_conv(module: nn.Module) -> int:
    """Replaces every nn.Linear below module, wherever it hides; returns how many."""
    count = 0
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, Conv1x1(child))
            count += 1
        else:
            count += linears_to_conv(child)
    return count
