"""Graphs whose products branch, meet and read one value in several ways: the walk must see each as it ships."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
import tiny
import torch
from quant_graphs import adapted, parse, prefill, run
from test_sequential import tapped

from edgeforge.graph import edit
from edgeforge.quantize import sequential
from edgeforge.quantize.products import products
from edgeforge.quantize.quality import PRESETS
from edgeforge.quantize.walk import Walk, stops
from edgeforge.quantize.weights.grid import Grid

Array = npt.NDArray[np.float32]
RNG = np.random.default_rng(5)


def weights(**shapes: tuple[int, ...]) -> dict[str, Array]:
    return {name: RNG.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


IMAGE, WIDE = "float[2,4,8,8] x", "float[2,N,8,8] y"
GRAPHS = {
    "two MLPs added": ("a = MatMul(x,w1) r = Relu(a) b = MatMul(r,w2) c = MatMul(x,w3) s = Relu(c) d = MatMul(s,w4) "
                       "y = Add(b,d)", "float[1,6,8] x", "float[1,6,8] y",
                       weights(w1=(8, 12), w2=(12, 8), w3=(8, 12), w4=(12, 8))),
    "two products added, and read": ("a = MatMul(x,w1) b = MatMul(x,w2) s = Add(a,b) r = Relu(s) y = MatMul(r,w3)",
                                     "float[1,6,8] x", "float[1,6,8] y", weights(w1=(8, 8), w2=(8, 8), w3=(8, 8))),
    "projected shortcut": ("a = Conv<pads=[1,1,1,1]>(x,w1) r = Relu(a) b = Conv<pads=[1,1,1,1]>(r,w2) "
                           "c = Conv(x,w3) s = Add(b,c) y = Conv(s,w4)", IMAGE, WIDE,
                           weights(w1=(6, 4, 3, 3), w2=(5, 6, 3, 3), w3=(5, 4, 1, 1), w4=(3, 5, 1, 1))),
    "strided shortcut": ("a = Conv<strides=[2,2],pads=[1,1,1,1]>(x,w1) c = Conv<strides=[2,2]>(x,w2) s = Add(a,c) "
                         "y = Conv(s,w3)", IMAGE, "float[2,N,4,4] y",
                         weights(w1=(5, 4, 3, 3), w2=(5, 4, 1, 1), w3=(3, 5, 1, 1))),
    "two dilations": ("a = Conv<pads=[1,1,1,1]>(x,w1) c = Conv<dilations=[2,2],pads=[2,2,2,2]>(x,w2) s = Concat<axis=1>"
                      "(a,c) y = Conv(s,w3)", IMAGE, WIDE,
                      weights(w1=(5, 4, 3, 3), w2=(5, 4, 3, 3), w3=(3, 10, 1, 1))),
    "square, channels last and first": ("t = Transpose<perm=[0,2,3,1]>(x) r = Relu(t) a = MatMul(r,w1) "
                                        "b = Transpose<perm=[0,3,1,2]>(a) s = Add(x,b) y = Conv(s,w2)",
                                        "float[1,8,8,8] x", "float[1,N,8,8] y", weights(w1=(8, 8), w2=(3, 8, 1, 1))),
    "reshaped to heads": ("r = Relu(x) a = MatMul(r,w1) b = Reshape(a, shape) h = Reshape(x, shape) s = Add(b,h) "
                          "f = Reshape(s, back) y = MatMul(f,w2)", "float[1,6,8] x", "float[1,6,3] y",
                          {**weights(w1=(8, 8), w2=(8, 3)), "shape": np.array([1, 6, 2, 4]),
                           "back": np.array([1, 6, 8])}),
}


@pytest.mark.parametrize("kind", GRAPHS)
def test_every_product_is_seen_behind_all_weights_before_it(kind: str, tmp_path: Path) -> None:
    body, inputs, outputs, arrays = GRAPHS[kind]
    model = parse(body, inputs, outputs, **arrays)
    names = [p.name for p in products(model.graph)]
    x = RNG.normal(size=edit.known_dims(model.graph.inputs[0])).astype(np.float32)
    feeds = {"x": torch.from_numpy(x)}
    walk, changed = Walk(model.graph, [feeds], both=True), model.clone()
    seen = []
    for stop in walk.visit():
        sums = walk.sums(stop)
        for product in stop.products:
            seen.append(product.name)
            rows = [product.rows(torch.from_numpy(_value(m, tmp_path / f"{product.name}{i}", feeds, product.source)))
                    for i, m in enumerate((changed, model))]
            gram, drift = rows[0].T @ rows[0], rows[0].T @ (rows[1] - rows[0])
            assert torch.allclose(sums.gram, gram, rtol=1e-3, atol=1e-3), product.name
            assert sums.drift is not None
            assert torch.allclose(sums.drift, drift, rtol=1e-3, atol=1e-3), product.name
            if product.stream is not None:
                now, then = (torch.from_numpy(_value(m, tmp_path / f"{product.name}s{i}", feeds, product.stream))
                             for i, m in enumerate((changed, model)))
                gone = rows[0].T @ (product.joined(then) - product.joined(now))
                assert torch.allclose(sums.streams[product.name], gone, rtol=1e-3, atol=1e-3)
        for product in stop.products:
            matrix = torch.round(product.matrix() * 2) / 2
            walk.replace(product, matrix)
            changed.graph.initializers[product.name].const_value = ir.tensor(product.restored(matrix).numpy())
    assert sorted(seen) == sorted(names)


def _value(model: ir.Model, folder: Path, feeds: dict[str, torch.Tensor], value: ir.Value) -> Array:
    name = str(value.name)
    return feeds[name].numpy() if name in feeds else tapped(model, folder, feeds, name).astype(np.float32)


@pytest.mark.parametrize("kind", ["square, channels last and first", "reshaped to heads"])
def test_a_stream_is_laid_as_the_output_that_joins_it(kind: str, tmp_path: Path) -> None:
    """output + stream, in the output's layout, is the sum."""
    body, inputs, outputs, arrays = GRAPHS[kind]
    model = parse(body, inputs, outputs, **arrays)
    x = RNG.normal(size=edit.known_dims(model.graph.inputs[0])).astype(np.float32)
    feeds = {"x": torch.from_numpy(x)}
    product = next(p for stop in stops(model.graph, streams=True) for p in stop.products if p.stream is not None)
    made, stream = (torch.from_numpy(_value(model, tmp_path / v.name, feeds, v))
                    for v in (product.node.outputs[0], product.stream))
    total = torch.from_numpy(tapped(model, tmp_path / "s", feeds, "s").astype(np.float32))
    assert torch.allclose(product.outputs_of(made) + product.joined(stream), product.joined(total), atol=1e-5)


@pytest.mark.parametrize("family", ["phi", "stablelm-parallel"])
@pytest.mark.parametrize("quality", ["fast", "balanced"])
def test_parallel_blocks(family: str, quality: str, tmp_path: Path) -> None:
    """Attention and MLP beside each other, added to each other first (Phi), or reading one norm (StableLM)."""
    made, model = adapted(family)
    first = prefill(made)
    copy = model.clone()
    grids = {p.name: Grid(8) for p in products(copy.graph)}
    feeds = {n: torch.from_numpy(a) for n, a in first.items()}
    sequential.quantize(copy, [feeds], grids, PRESETS[quality], lambda text: None)
    wanted, found = (run(m, tmp_path / str(i), first)["logits"] for i, m in enumerate((model, copy)))
    assert tiny.sqnr_db(wanted, found) > 25
