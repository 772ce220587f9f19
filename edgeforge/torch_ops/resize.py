"""Resize by nearest, linear and cubic interpolation, one axis after the other."""

from __future__ import annotations

import onnx_ir as ir
import torch

from edgeforge.errors import UnsupportedError
from edgeforge.torch_ops.read import Inputs, Op, integer, ints, needed, number, numbers, optional, text


def _resize(node: ir.Node, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """Raises UnsupportedError for antialiasing, cropping by a region, and sizes that keep an aspect ratio."""
    _refuse(node)
    x, scales, sizes = needed(inputs, 0), optional(inputs, 2), numbers(inputs, 3)
    axes = [a % x.ndim for a in ints(node, "axes", range(x.ndim))]
    for at, axis in enumerate(axes):
        before = x.shape[axis]
        if sizes is not None:
            scale, after = sizes[at] / before, sizes[at]
        elif scales is not None:
            scale, after = float(scales[at]), int(scales[at] * before)  # in float32, as onnxruntime counts
        else:
            raise ValueError(f"{node.name}: neither scales nor sizes")
        if scale != 1:
            x = _along(node, x, axis, _coordinates(node, before, after, scale))
    return (x,)


def _refuse(node: ir.Node) -> None:
    policy = text(node, "keep_aspect_ratio_policy", "stretch")
    found = ["antialias"] if integer(node, "antialias", 0) else []
    found += [policy] if policy != "stretch" else []
    found += [m for m in [text(node, "coordinate_transformation_mode", "")] if m == "tf_crop_and_resize"]
    if found:
        raise UnsupportedError(f"{node.outputs[0].name}: Resize with {found[0]} is not evaluated in torch",
                               "export an interpolation without it")


def _coordinates(node: ir.Node, before: int, after: int, scale: float) -> torch.Tensor:
    """Where each output lies among the inputs; in float32, as onnxruntime counts: ties depend on it."""
    mode = text(node, "coordinate_transformation_mode", "half_pixel")
    place, factor = torch.arange(after, dtype=torch.float32), torch.tensor(scale, dtype=torch.float32)
    if mode == "asymmetric":
        return place / factor
    if mode == "align_corners":
        return place * (before - 1) / (after - 1) if after > 1 else place
    if mode == "pytorch_half_pixel" and after == 1:
        return place
    if mode == "half_pixel_symmetric":
        return before / 2 * (1 - after / (factor * before)) + (place + 0.5) / factor - 0.5
    return (place + 0.5) / factor - 0.5


def _along(node: ir.Node, x: torch.Tensor, axis: int, at: torch.Tensor) -> torch.Tensor:
    """x interpolated at these places of an axis: a weighted sum of neighbours, the outermost ones repeated."""
    mode, size = text(node, "mode", "nearest"), x.shape[axis]
    if mode == "nearest":
        return x.index_select(axis, _nearest(node, at).clamp(0, size - 1).to(x.device))
    if mode == "linear":
        at = at.clamp(0, size - 1)
    low = at.floor()
    weights = _linear(at - low) if mode == "linear" else _cubic(at - low, number(node, "cubic_coeff_a", -0.75))
    taps = [low.long() + step for step in ((0, 1) if mode == "linear" else (-1, 0, 1, 2))]
    if integer(node, "exclude_outside", 0):
        weights = [w * ((t >= 0) & (t < size)) for w, t in zip(weights, taps, strict=True)]
        total = torch.stack(weights).sum(0)
        weights = [w / total for w in weights]
    view = [-1 if a == axis else 1 for a in range(x.ndim)]
    parts = [x.index_select(axis, t.clamp(0, size - 1).to(x.device)) * w.to(x).reshape(view)
             for t, w in zip(taps, weights, strict=True)]
    return torch.stack(parts).sum(0)


def _nearest(node: ir.Node, at: torch.Tensor) -> torch.Tensor:
    mode = text(node, "nearest_mode", "round_prefer_floor")
    if mode == "floor":
        return at.floor().long()
    if mode == "ceil":
        return at.ceil().long()
    return (torch.ceil(at - 0.5) if mode == "round_prefer_floor" else torch.floor(at + 0.5)).long()


def _linear(t: torch.Tensor) -> list[torch.Tensor]:
    return [1 - t, t]


def _cubic(t: torch.Tensor, a: float) -> list[torch.Tensor]:
    """Keys' kernel (R. Keys, Cubic convolution interpolation for digital image processing, 1981)."""
    def near(d: torch.Tensor) -> torch.Tensor:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: torch.Tensor) -> torch.Tensor:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(1 + t), near(t), near(1 - t), far(2 - t)]


OPS: dict[str, Op] = {"Resize": _resize}
