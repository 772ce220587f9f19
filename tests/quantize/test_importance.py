"""What a token counts, against one backward pass through the whole graph."""

from __future__ import annotations

import pytest
import torch
from quant_graphs import adapted
from test_sequential import samples

from edgeforge import torch_ops
from edgeforge.quantize import importance, sequential
from edgeforge.quantize.products import products
from edgeforge.quantize.walk import Walk, constants
from edgeforge.quantize.weights.fit import Method
from edgeforge.quantize.weights.grid import Grid


def whole(graph, sample, generator):  # type: ignore[no-untyped-def]
    """Every product's gradient at once: no stretches, nothing run twice."""
    values = {v: sample[str(v.name)] for v in graph.inputs} | constants(list(graph))
    gradients, first = {}, True
    for node in graph:
        outputs = torch_ops.evaluate(node, [values.get(v) for v in node.inputs])
        for value, made in zip(node.outputs, outputs, strict=False):
            values[value] = made.requires_grad_() if first and made.is_floating_point() else made
            first = first and not made.is_floating_point()
    wanted = {p.name: p for p in products(graph)}
    logits = next(values[v] for v in graph.outputs if v.name == "logits")
    slope = importance._slope(logits.detach(), generator)
    made = torch.autograd.grad([logits], [values[p.node.outputs[0]] for p in wanted.values()], [slope])
    for product, gradient in zip(wanted.values(), made, strict=True):
        gradients[product.name] = product.outputs_of(gradient).square().sum(-1).sqrt()
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


def test_a_fit_by_importance_is_another_one() -> None:
    made, model = adapted("llama")
    kept = {}
    for important in (False, True):
        copy = model.clone()
        grids = {p.name: Grid(4, 16, lpbq=True) for p in products(copy.graph)}
        sequential.quantize(copy, samples(made), grids, Method(importance=important), lambda text: None)
        kept[important] = {n: v.const_value.numpy() for n, v in copy.graph.initializers.items() if v.const_value}
    assert any((kept[True][n] != kept[False][n]).any() for n in kept[True])
