"""How much each token of calibration matters to the model's answer, as seen from every product.

The loss of a weight's error is |X e|^2 only when every token counts alike. To second order, what an error does to
the output distribution is weighted by the Fisher information: with g the gradient of a sampled token's log-likelihood
at the product's output, E[(g . X e)^2] (GuidedQuant, arXiv 2505.07004, groups it by output; here one weight a token
serves all outputs, so that one Gram matrix serves the layer). Tokens that the model is sure of hardly matter: these
energies span nine orders of magnitude, and a few tokens would decide everything. Their square root keeps more of the
text in play: on SmolLM2 (W4 in blocks of 64, 4k tokens, no correction) KL falls from 0.131 to 0.121 with the energies
themselves, to 0.112 with their roots.

One sample at a time, one stretch of the graph at a time: the forward pass keeps what crosses from one stop of the
walk to the next, the backward pass runs each stretch again with gradients. Memory stays that of one block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
import torch
from edgeforge_runtime.manifest import LOGITS
from torch import Tensor

from edgeforge import torch_ops
from edgeforge.quantize.products import Product
from edgeforge.quantize.walk import Sample, constants, missing, stops

_SEED = 0


def shares(graph: ir.Graph, samples: Sequence[Sample]) -> dict[str, list[Tensor]]:
    """By weight name, for each sample: the size of the gradient at the product's output, [tokens]; mean 1 over all."""
    return {name: _normal([e.sqrt() for e in each]) for name, each in energies(graph, samples).items()}


def energies(graph: ir.Graph, samples: Sequence[Sample]) -> dict[str, list[Tensor]]:
    """By weight name, for each sample: the energy of the gradient at the product's output, [tokens].

    Args:
        graph: a decoder's float graph; its output "logits" is [1, tokens, vocab].
    """
    stretches = _stretches(graph)
    generator = torch.Generator().manual_seed(_SEED)
    # Room first: what is made small and kept between large values keeps the C library from giving those back (137 MiB
    # a sample of SmolLM2).
    found = {p.name: [torch.zeros(sample["input_ids"].numel()) for sample in samples]
             for stretch in stretches for p in stretch.products}
    for index, sample in enumerate(samples):
        for name, energy in _one(graph, stretches, sample, generator).items():
            found[name][index].copy_(energy)
    return found


def _normal(each: list[Tensor]) -> list[Tensor]:
    mean = torch.cat(each).mean()
    return [e / mean if mean > 0 else torch.ones_like(e) for e in each]


class _Stretch:
    """Nodes between two stops, the products among them, and what later stretches read."""

    def __init__(self, nodes: Sequence[ir.Node], products: Sequence[Product], kept: frozenset[ir.Value]) -> None:
        self.nodes, self.products, self.kept = tuple(nodes), tuple(products), kept


def _stretches(graph: ir.Graph) -> list[_Stretch]:
    waiting = stops(graph, streams=False)
    made = {p.node: p for stop in waiting for p in stop.products}
    done = {node for stop in waiting for node in stop.nodes}
    logits = [v for v in graph.outputs if str(v.name) == LOGITS]
    order = {node: i for i, node in enumerate(graph)}
    rest = sorted(missing(logits, done), key=order.__getitem__)
    ways = [*((stop.nodes, stop.kept) for stop in waiting), (tuple(rest), frozenset(logits))]
    return [_Stretch(nodes, [made[n] for n in nodes if n in made], kept) for nodes, kept in ways]


def _one(graph: ir.Graph, stretches: list[_Stretch], sample: Sample, generator: torch.Generator) -> dict[str, Tensor]:
    inputs = {v: sample[str(v.name)] for v in graph.inputs}
    crossing: list[dict[ir.Value, Tensor]] = [{}]
    with torch.no_grad():
        for stretch in stretches:
            values = _run(stretch, inputs | crossing[-1])
            crossing.append({v: values[v] for v in stretch.kept if v in values and v not in inputs})
    logits = next(v for v in stretches[-1].kept)
    grads: dict[ir.Value, Tensor] = {logits: _slope(crossing[-1][logits], generator)}
    found: dict[str, Tensor] = {}
    for stretch, before in zip(reversed(stretches), reversed(crossing[:-1]), strict=True):
        grads, sizes = _back(stretch, inputs, before, grads)
        found |= sizes
    return found


def _slope(logits: Tensor, generator: torch.Generator) -> Tensor:
    """The gradient of -log p(y) in the logits, y drawn from the model itself: p less one at y."""
    p = logits.softmax(-1)
    drawn = torch.multinomial(p.reshape(-1, p.shape[-1]), 1, generator=generator)
    return p.scatter_add(-1, drawn.reshape(*p.shape[:-1], 1), -torch.ones(*p.shape[:-1], 1))


def _run(stretch: _Stretch, values: dict[ir.Value, Tensor]) -> dict[ir.Value, Tensor]:
    parameters = constants(stretch.nodes)
    for node in stretch.nodes:
        given = [None if v is None else parameters[v] if v in parameters else values[v] for v in node.inputs]
        values.update(zip(node.outputs, torch_ops.evaluate(node, given), strict=False))
    return values


def _back(stretch: _Stretch, inputs: Mapping[ir.Value, Tensor], before: Mapping[ir.Value, Tensor],
          grads: Mapping[ir.Value, Tensor]) -> tuple[dict[ir.Value, Tensor], dict[str, Tensor]]:
    """Gradients at what the stretch starts from, and its products' shares."""
    leaves = {v: t.detach().requires_grad_() if t.is_floating_point() else t for v, t in before.items()}
    with torch.enable_grad():
        values = _run(stretch, {**inputs, **leaves})
        ends = [(values[v], g) for v, g in grads.items() if values[v].requires_grad]
        products = [p for p in stretch.products if values[p.node.outputs[0]].requires_grad]
        wanted = [*(t for t in leaves.values() if t.requires_grad), *(values[p.node.outputs[0]] for p in products)]
        if not ends or not wanted:
            return {}, {}
        made = torch.autograd.grad([t for t, _ in ends], wanted, [g for _, g in ends], allow_unused=True)
    starts = [v for v, t in leaves.items() if t.requires_grad]
    slopes = {v: g for v, g in zip(starts, made, strict=False) if g is not None}
    found = {p.name: p.outputs_of(g).square().sum(-1)
             for p, g in zip(products, made[len(starts):], strict=True) if g is not None}
    return slopes, found
