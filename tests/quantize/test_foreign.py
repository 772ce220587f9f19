"""Which foreign grids a graph can take, and what is fitted behind weights that have one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from quant_graphs import adapted, aimet_model, parse

from edgeforge import encodings
from edgeforge.encodings import Encoding
from edgeforge.errors import EdgeForgeError
from edgeforge.export import aimet, aimet_read
from edgeforge.graph import operand
from edgeforge.graph.requantize import OPERAND, InsertRequantize, mark
from edgeforge.quantize import assign, foreign, sequential
from edgeforge.quantize.products import products
from edgeforge.quantize.weights.fit import Method
from edgeforge.quantize.weights.grid import Grid, per_channel

GOLDEN = Path(__file__).parents[2] / "test_vectors" / "aimet"
GRIDS = assign.Grids()
RNG = np.random.default_rng(3)
A, B = encodings.per_tensor(-1, 2, 16), encodings.per_tensor(-1, 3, 16)
BLOCKS = np.array([[16, 3], [5, 16], [16, 16], [1, 16]])


def graph() -> ir.Graph:
    """A Concat of an activation with a softmax's requantized output, products by a weight, by one behind a Transpose,
    and of activations, a kernel of 3x3, and a table."""
    weights = {"turned": (4, 8), "kernel": (2, 8, 3, 3), "table": (5, 4), "plain": (8, 4)}
    made = parse("""
        m = MatMul(x, plain) w = Transpose<perm = [1, 0]>(turned) z = MatMul(x, w)
        s = Softmax(m) j = Concat<axis = 0>(m, s) t = Transpose<perm = [1, 0]>(m) right = Identity(t)
        p = MatMul(j, right) look = Gather(table, ids) y = Mul(p, scale) k = Conv(image, kernel)
        """, "float[3, 8] x, int64[2] ids, float[1, 8, 9, 9] image, float[6, 3] scale",
                 "float[6, 3] y, float[2, 4] look, float[1, 2, 7, 7] k, float[3, 4] z",
                 **{n: RNG.normal(size=s).astype(np.float32) for n, s in weights.items()})
    mark(next(v for n in made.graph for v in n.outputs if v.name == "right"), OPERAND)
    operand.RequantizeFixed()(made)
    return made.graph


def _lpbq(blocks: np.ndarray, axis: int, channel: int) -> Encoding:
    return Encoding(4, True, np.full(4, 0.1, np.float32), np.zeros(blocks.shape, np.int64), axis, 4, blocks, channel)


def _channels(axis: int, size: int) -> Encoding:
    return Encoding(8, True, np.full(size, 0.1, np.float32), np.zeros(size, np.int64), axis)


@pytest.mark.parametrize(("given", "said"), [
    ({"m": A, "j": B}, "m and j lie on one grid here .codes pass between them unchanged., and have two"),
    ({"x": _channels(1, 8)}, "x: scales along axis 1; an activation has one for all of it"),
    ({"x": encodings.per_tensor(-1, 1, 8)}, "x: 8 bits; an activation has 16 here"),
    ({"right": A}, "right: asymmetric; the second operand of a product is symmetric"),
    ({"table": encodings.per_tensor(-1, 1, 8)}, "table: 8 bits; an embedding table has 16 here"),
    ({"w": _channels(1, 4)}, "w: it is turned moved, and that has the grid"),
    ({"turned": _channels(1, 8)}, "turned: scales along axis 1, and its outputs are axis 0"),
    ({"plain": _lpbq(BLOCKS, 1, 0)}, "plain: blocks along axis 1, and its inputs are axis 0, its outputs axis 1"),
    ({"turned": _lpbq(BLOCKS, 1, 0)}, "turned: it is in blocks; only 1x1 convolutions and MatMuls take blocks"),
    ({"plain": _lpbq(np.minimum(BLOCKS.T, 15), 0, 1)}, "plain: the (largest block|step of block)"),
    ({"turned": encodings.per_tensor(-1, 1, 5, signed=True)}, "turned: 5 bits; a weight has 4, 8, 16"),
    ({"kernel": Encoding(4, True, np.ones(2, np.float32), np.zeros((2, 2, 3, 3), np.int64), 1, 4,
                         np.full((2, 2, 3, 3), 16), 0)}, "kernel: it is in blocks; only 1x1 convolutions and MatMuls"),
])
def test_what_cannot_be_is_told_with_its_reason(given: dict[str, Encoding], said: str) -> None:
    with pytest.raises(EdgeForgeError, match=f"cannot take 1 of the file's encodings:\n  {said}"):
        foreign.take(graph(), given, GRIDS, {"scale": (-50, 0)})


def test_all_reasons_at_once() -> None:
    given: dict[str, Any] = {"x": encodings.per_tensor(-1, 1, 8), "w": _channels(1, 4), "table": _channels(0, 5)}
    with pytest.raises(EdgeForgeError) as caught:
        foreign.take(graph(), given, GRIDS, {})
    assert caught.value.message.startswith("cannot take 3 of the file's encodings:")
    assert all(f"\n  {name}: " in caught.value.message for name in given)


def test_what_can_be_is_let_through_and_shared() -> None:
    given = {"m": A, "s": encodings.per_tensor(0, 1, 16), "plain": _lpbq(BLOCKS.T, 0, 1),
             "turned": _channels(0, 4), "kernel": _channels(0, 2),
             "right": encodings.per_tensor(-1, 1, 16, signed=True), "scale": encodings.per_tensor(-50, 0, 16)}
    found = foreign.take(graph(), given, GRIDS, {"scale": (-50, 0)})
    assert (set(found.table), found.fixed) == (set(given), ())
    foreign.take(graph(), given | {"kernel": encodings.per_tensor(-1, 1, 8, signed=True)}, GRIDS, {})
    assert foreign.together(graph(), given) == len({"j", "t", "s/free"})
    ranges = dict.fromkeys(("x", "image", "scale", "p", "y", "k", "z"), (-1.0, 1.0))
    table = assign.assign(graph(), ranges, GRIDS, given)
    assign.coverage(graph(), table)
    assert {n for n, e in table.items() if encodings.equal(e, A)} == {"m", "j", "t", "s/free"}
    assert all(encodings.equal(table[n], e) for n, e in given.items())


def test_what_an_op_or_the_contract_fixes_stays() -> None:
    """Other tools name the range that they saw there; no value of a softmax lies past 1."""
    given = {"s": encodings.per_tensor(0, 0.98, 16), "scale": A, "x": A}
    found = foreign.take(graph(), given, GRIDS, {"scale": (-50, 0)})
    assert (set(found.table), set(found.fixed)) == ({"x"}, {"s", "scale"})


@pytest.mark.parametrize("version", aimet.VERSIONS)
def test_what_aimet_wrote_can_be_taken(version: aimet.Version) -> None:
    graph = aimet_model().graph
    theirs = aimet_read.read(GOLDEN / f"theirs-{version}.encodings", graph)
    found = foreign.take(graph, theirs, GRIDS, {})
    assert (set(found.table), set(found.fixed)) == (set(theirs) - {"s", "h"}, {"s", "h"})


def test_a_cache_keeps_its_bits_and_its_middle() -> None:
    _, model = adapted("llama")
    model = model.clone()
    InsertRequantize()(model)
    name = "past_key_0_out"
    for wrong, said in ((A, "16 bits; a cache has 8"), (encodings.per_tensor(-1, 3, 8), "asymmetric; a cache is")):
        with pytest.raises(EdgeForgeError, match=f"past_key_0_out: {said}"):
            foreign.take(model.graph, {name: wrong}, GRIDS, {})
    foreign.take(model.graph, {name: encodings.per_tensor(-1, 1, 8, symmetric=True)}, GRIDS, {})


def test_a_weight_is_fitted_behind_the_foreign_grid_of_another() -> None:
    """With 2 bits for the first, what the second reads is another thing: its codes must be those of the model whose
    first weight is so rounded already."""
    shapes = {"a": (8, 6), "b": (6, 4)}
    arrays = {n: RNG.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    coarse = per_channel(arrays["a"], 1, 2)
    x = {"x": torch.from_numpy(RNG.normal(size=(64, 8)).astype(np.float32))}
    method = Method("search", "gptq", refine=1, correction=0.0, importance=False, reconstruct=False)

    def fitted(first: np.ndarray, **options: Any) -> tuple[list[str], np.ndarray, np.ndarray]:
        model = parse("h = MatMul(x, a) r = Relu(h) y = MatMul(r, b)", "float[64, 8] x", "float[64, 4] y", a=first,
                      b=arrays["b"])
        made = sequential.quantize(model, [x], {"b": Grid(4)}, method, lambda text: None, **options)
        left = {p.name: p.weight.const_value.numpy() for p in products(model.graph) if p.weight.const_value is not None}
        return [w.name for w in made], left["a"], left["b"]

    names, kept, b = fitted(arrays["a"], held={"a": coarse})
    assert names == ["b"]
    np.testing.assert_array_equal(kept, arrays["a"])
    np.testing.assert_array_equal(b, fitted(coarse.dequantize(coarse.quantize(arrays["a"])))[2])
    assert (b != fitted(arrays["a"])[2]).any()
