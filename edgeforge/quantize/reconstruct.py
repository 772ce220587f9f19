"""One block's steps and norm gains tuned together by gradient, so that the block's output behind quantized inputs is
the float model's.

Layer by layer, each weight is best for its own output. What the softmax and the gate make of several of them at
once is seen only from the block's end (BRECQ, arXiv 2102.05426; OmniQuant, arXiv 2308.13137; AIMET's AdaScale). Codes
and integer block scales stay as they are; what moves is a float for each output channel of each weight, and the
gains of norms inside, both as factors e^g: a few thousand numbers, so that little text is enough.

The error of a token is taken relative to the size of its own value in the stream, which the next norm divides by: a
massive first token would otherwise be all there is. It counts as the token's importance says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir
import torch
from torch import Tensor

from edgeforge import torch_ops
from edgeforge.quantize.products import Product
from edgeforge.quantize.walk import constants
from edgeforge.quantize.weights.fit import Fitted

STEPS = 48
"""of one sample each"""
RATE, GAIN_RATE = 2e-3, 1e-3
_NORMS = ("RMSNormalization", "LayerNormalization")


@dataclasses.dataclass(frozen=True)
class Block:
    """What lies between two cuts of the walk: start -> nodes -> end, with fitted products inside."""

    start: ir.Value
    end: ir.Value
    nodes: tuple[ir.Node, ...]
    fitted: tuple[tuple[Product, Fitted], ...]


def tune(block: Block, starts: Sequence[Mapping[ir.Value, Tensor]], ends: Sequence[Tensor],
         shares: Sequence[Tensor | None]) -> tuple[list[Fitted], dict[ir.Value, Tensor]]:
    """New steps of the block's products, and new gains by parameter; what was there when tuning does not pay.

    Args:
        starts: for each sample the graph's inputs and the start's value behind quantized layers.
        ends: the end's value in the float model. shares: what each token counts, [tokens], or None.
    """
    fixed = constants(block.nodes)
    steps = {p: torch.zeros_like(f.steps.channel, requires_grad=True) for p, f in block.fitted}
    gains = {v: torch.zeros_like(fixed[v], requires_grad=True) for v in _gains(block.nodes)}
    optimizer = torch.optim.Adam([{"params": list(steps.values()), "lr": RATE},
                                  {"params": list(gains.values()), "lr": GAIN_RATE}], betas=(0.9, 0.95))
    warm = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

    def losses(index: int) -> Tensor:
        weights = {p.weight: p.restored(f.reals * steps[p].exp()) for p, f in block.fitted}
        weights |= {v: fixed[v] * g.exp() for v, g in gains.items()}
        return _error(_run(block, {**starts[index], **fixed, **weights}), ends[index], shares[index])

    with torch.no_grad():
        before = torch.stack([losses(i) for i in range(len(starts))])
    with torch.enable_grad():
        for step in range(STEPS):
            loss = losses(step % len(starts)) / before.mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            warm.step()
    with torch.no_grad():
        after = torch.stack([losses(i) for i in range(len(starts))])
        if not after.mean() < before.mean():
            return [f for _, f in block.fitted], {}
        made = [dataclasses.replace(f, steps=dataclasses.replace(f.steps, channel=f.steps.channel * steps[p].exp()))
                for p, f in block.fitted]
        return made, {v: fixed[v] * g.exp() for v, g in gains.items()}


def _gains(nodes: Sequence[ir.Node]) -> list[ir.Value]:
    """Gains of norms that nobody else reads."""
    found = [n.inputs[1] for n in nodes if n.op_type in _NORMS]
    return [v for v in found if v is not None and v.is_initializer() and len(list(v.uses())) == 1]


def _run(block: Block, values: dict[ir.Value, Tensor]) -> Tensor:
    for node in block.nodes:
        given = [None if v is None else values[v] for v in node.inputs]
        values.update(zip(node.outputs, torch_ops.evaluate(node, given), strict=False))
    return values[block.end]


def _error(made: Tensor, wanted: Tensor, share: Tensor | None) -> Tensor:
    """The mean over tokens of |made - wanted|^2 / |wanted|^2; tokens are the second last axis, or the last of a
    value whose channels come second."""
    if wanted.ndim == 4 and wanted.shape[2] == 1:
        made, wanted = made.movedim(1, -1), wanted.movedim(1, -1)
    lost = (made - wanted).square().sum(-1).reshape(-1)
    size = wanted.square().sum(-1).reshape(-1)
    relative = lost / size.clamp_min(1e-6 * float(size.mean()) + 1e-20)
    return (relative * share).mean() if share is not None else relative.mean()
