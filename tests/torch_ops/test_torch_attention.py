"""Four nodes of attention evaluated as one."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
import torch_graphs as tg

sys.path.insert(0, str(Path(__file__).parents[1] / "quantize"))

from quant_graphs import adapted, parse

from edgeforge.torch_ops import attention

CHAIN = "s = MatMul(q, k) m = Add(s, mask) p = Softmax(m) y = MatMul(p, v)"
SHAPES = {"q": "float[2,3,5,4] q", "k": "float[2,1,4,7] k", "mask": "float[1,1,5,7] mask", "v": "float[2,1,7,6] v"}


def graph(body: str, outputs: str = "float[2,3,5,6] y", **shapes: str) -> ir.Graph:
    return parse(body, ", ".join((SHAPES | shapes).values()), outputs).graph


@pytest.mark.parametrize("body", [
    CHAIN, CHAIN.replace("Add(s, mask)", "Add(mask, s)"), CHAIN.replace("m = Add(s, mask) ", "").replace("(m)", "(s)"),
    CHAIN.replace("Softmax", "Softmax<axis=3>")])
def test_it_is_what_its_nodes_make(body: str) -> None:
    """Grouped queries and a mask for all heads included."""
    made = graph(body)
    rng = np.random.default_rng(1)
    feeds = {str(v.name): rng.normal(size=[int(d) for d in v.shape or ()]).astype(np.float32) for v in made.inputs}
    [(node, found)] = attention.find(made).items()
    assert node.outputs[0].name == "y"
    assert [n.outputs[0].name for n in found.inner] == [n.outputs[0].name for n in made if n is not node]
    [whole] = attention.evaluate([torch.from_numpy(feeds[str(v.name)]) for v in found.inputs])
    np.testing.assert_allclose(whole.numpy(), tg.interpret(made, feeds)["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("body", "outputs"), [
    (CHAIN, "float[2,3,5,6] y, float[2,3,5,7] p"), (CHAIN + " z = Relu(s)", "float[2,3,5,6] y, float[2,3,5,7] z"),
    (CHAIN.replace("Softmax", "Softmax<axis=2>"), "float[2,3,5,6] y"),
    (CHAIN.replace("m = Add(s, mask)", "t = Tanh(s) m = Add(t, mask)"), "float[2,3,5,6] y")])
def test_what_somebody_else_reads_stays(body: str, outputs: str) -> None:
    assert attention.find(graph(body, outputs)) == {}


@pytest.mark.parametrize(("family", "layers"), [("llama", 2), ("llama-mqa", 2), ("qwen3", 2), ("gemma2", 0)])
def test_decoders_have_one_a_layer(family: str, layers: int) -> None:
    """Gemma2 caps its scores."""
    _, model = adapted(family)
    assert len(attention.find(model.graph)) == layers
