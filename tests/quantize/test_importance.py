"""What a token counts, against one backward pass through the whole graph."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from quant_graphs import adapted
from test_sequential import samples

from edgeforge import torch_ops
from edgeforge.quantize import importance, sequential
from edgeforge.quantize.products import products
from edgeforge.quantize.quality import PRESETS
from edgeforge.quantize.walk import Walk, constants
from edgeforge.quantize.weights.grid import Grid


def whole(graph, sample, generator):  # type: ignore[no-untyped-def]
    """Every product's gradient at once, of the likelihood itself: no stretches, nothing run twice, no formula."""
    values = {v: sample[str(v.name)] for v in graph.inputs} | constants(list(graph))
    gradients, first = {}, True
    for node in graph:
        outputs = torch_ops.evaluate(node, [values.get(v) for v in node.inputs])
        for value, made in zip(node.outputs, outputs, strict=False):
            values[value] = made.requires_grad_() if first and made.is_floating_point() else made
            first = first and not made.is_floating_point()
    wanted = {p.name: p for p in products(graph)}
    logits = next(values[v] for v in graph.outputs if v.name == "logits")[0]
    drawn = torch.multinomial(logits.detach().softmax(-1), 1, generator=generator)[:, 0]
    likelihood = torch.nn.functional.cross_entropy(logits, drawn, reduction="sum")
    made = torch.autograd.grad(likelihood, [values[p.node.outputs[0]] for p in wanted.values()])
    for name, gradient in zip(wanted, made, strict=True):
        channels = 1 if wanted[name].node.op_type == "Conv" else -1
        gradients[name] = gradient.square().sum(channels).flatten().sqrt()
    return gradients


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_each_stretch_backwards_is_the_whole_backwards(family: str) -> None:
    made, model = adapted(family)
    feeds = samples(made)
    found = importance.shares(model.graph, feeds)
    assert set(found) == {p.name for p in products(model.graph)}
    generator = torch.Generator().manual_seed(0)
    wanted = [whole(model.graph, sample, generator) for sample in feeds]
    for name, each in found.items():
        truth = torch.stack([w[name] for w in wanted])
        assert torch.allclose(torch.stack(each), truth / truth.mean(), rtol=1e-3, atol=1e-5), name
        assert torch.stack(each).mean() == pytest.approx(1, rel=1e-4)


def test_the_walk_weighs_tokens() -> None:
    made, model = adapted("llama")
    feeds = samples(made)[:1]
    tokens = feeds[0]["input_ids"].shape[1]
    shares = {p.name: [torch.linspace(0, 2, tokens)] for p in products(model.graph)}
    plain, weighed = Walk(model.graph, feeds, both=False), Walk(model.graph, feeds, both=False, shares=shares)
    for stop, _ in zip(plain.visit(), weighed.visit(), strict=True):
        sums, other = plain.sums(stop), weighed.sums(stop)
        x = stop.products[0].rows(plain._quantized[0][stop.source])
        assert torch.allclose(sums.gram, x.T @ x, rtol=1e-4, atol=1e-4)
        assert torch.allclose(other.gram, (x * torch.linspace(0, 2, tokens)[:, None]).T @ x, rtol=1e-4, atol=1e-4)


def test_a_fit_by_importance_loses_less_of_what_counts() -> None:
    """At the first stop, which both fits see alike; and more of what counts all tokens alike."""
    made, model = adapted("llama")
    feeds = samples(made)
    walk = Walk(model.graph, feeds, both=False, shares=importance.shares(model.graph, feeds))
    first = next(iter(walk.visit()))
    weighed = walk.sums(first).gram
    rows = torch.cat([first.products[0].rows(sample[first.source]) for sample in walk._quantized])
    lost = {}
    for important in (False, True):
        copy = model.clone()
        method = dataclasses.replace(PRESETS["fast"], importance=important)
        sequential.quantize(copy, feeds, {p.name: Grid(4) for p in products(copy.graph)}, method, lambda text: None)
        errors = {p.name: p.matrix() for p in products(copy.graph)}
        lost[important] = [sum(float(((h @ (p.matrix() - errors[p.name])) * (p.matrix() - errors[p.name])).sum())
                               for p in first.products) for h in (weighed, rows.T @ rows)]
    assert lost[True][0] < lost[False][0]
    assert lost[True][1] > lost[False][1]
