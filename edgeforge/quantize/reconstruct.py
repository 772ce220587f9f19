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
from edgeforge.quantize.weights.grid import shipped

STEPS = 48
RATE, GAIN_RATE = 1e-3, 5e-4
_NORMS = ("RMSNormalization", "LayerNormalization")


@dataclasses.dataclass(frozen=True)
class Block:
    """What lies between two cuts of the walk: start -> nodes -> end, with fitted products inside."""

    start: ir.Value
    end: ir.Value
    nodes: tuple[ir.Node, ...]
    fitted: tuple[tuple[Product, Fitted], ...]


Tuned = tuple[list[Fitted], dict[ir.Value, Tensor]]
"""a block's products with new steps, and new gains by parameter"""


def tune(block: Block, starts: Sequence[Mapping[ir.Value, Tensor]], ends: Sequence[Tensor],
         shares: Sequence[Tensor | None], correction: float) -> Tuned | None:
    """The block tuned; None when that does not bring it nearer.

    Args:
        starts: for each sample the graph's inputs and the start's value behind quantized layers.
        ends: the end's value in the float model. shares: what each token counts, [tokens], or None.
        correction: how much of what earlier blocks lost is made up for, as in target.py; the rest of the target is
            what the float block makes of the quantized start.
    """
    fixed = constants(block.nodes)
    with torch.no_grad():
        alone = [_run(block, {**start, **fixed}) for start in starts]
        wanted = [mine + correction * (end - mine) for mine, end in zip(alone, ends, strict=True)]
    tuning = _Tuning(block, fixed, starts, wanted, shares)
    before = tuning.error()
    tuning.descend(before)
    return tuning.found() if tuning.error() < before else None


class _Tuning:
    """The block's factors e^g, and how far its end is from what is wanted with them."""

    def __init__(self, block: Block, fixed: Mapping[ir.Value, Tensor], starts: Sequence[Mapping[ir.Value, Tensor]],
                 wanted: Sequence[Tensor], shares: Sequence[Tensor | None]) -> None:
        self._block, self._fixed = block, fixed
        self._samples = list(zip(starts, wanted, shares, strict=True))
        self._steps = {p: torch.zeros_like(f.steps.channel, requires_grad=True) for p, f in block.fitted}
        self._gains = {v: torch.zeros_like(fixed[v], requires_grad=True) for v in _gains(block.nodes)}

    def error(self) -> Tensor:
        """The mean over samples."""
        with torch.no_grad():
            return torch.stack([self._loss(i) for i in range(len(self._samples))]).mean()

    def descend(self, unit: Tensor) -> None:
        """STEPS steps, of one sample each, whose losses are divided by unit; ever smaller ones."""
        optimizer = torch.optim.Adam([{"params": list(self._steps.values()), "lr": RATE},
                                      {"params": list(self._gains.values()), "lr": GAIN_RATE}], betas=(0.9, 0.95))
        cooling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        with torch.enable_grad():
            for step in range(STEPS):
                loss = self._loss(step % len(self._samples)) / unit
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                cooling.step()

    @torch.no_grad()
    def found(self) -> Tuned:
        made = [dataclasses.replace(f, steps=shipped(dataclasses.replace(
            f.steps, channel=f.steps.channel * self._steps[p].exp()))) for p, f in self._block.fitted]
        return made, {v: self._fixed[v] * g.exp() for v, g in self._gains.items()}

    def _loss(self, index: int) -> Tensor:
        start, wanted, share = self._samples[index]
        weights = {p.weight: p.restored(f.reals * self._steps[p].exp()) for p, f in self._block.fitted}
        weights |= {v: self._fixed[v] * g.exp() for v, g in self._gains.items()}
        return _error(_run(self._block, {**start, **self._fixed, **weights}), wanted, share)


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
