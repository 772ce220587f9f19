"""Weights fitted one after the other: what the walk sees against onnxruntime, and what comes of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
import tiny
import torch
from quant_graphs import adapted, parse, prefill, run

from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit
from edgeforge.quantize import footprint, sequential
from edgeforge.quantize.products import products
from edgeforge.quantize.quality import PRESETS
from edgeforge.quantize.walk import Walk, stops
from edgeforge.quantize.weights import target
from edgeforge.quantize.weights.fit import Method
from edgeforge.quantize.weights.grid import Grid

Array = npt.NDArray[np.float32]
RNG = np.random.default_rng(0)
PRODUCTS = {
    "conv 1x1": ("y = Conv(x, w)", "float[1,6,1,5] x", "float[1,4,1,5] y", (4, 6, 1, 1)),
    "conv 3x3": ("y = Conv<pads=[1,0,1,2], strides=[2,1], dilations=[1,2]>(x, w)", "float[2,3,9,9] x",
                 "float[2,4,5,7] y", (4, 3, 3, 3)),
    "conv 1x1, every second": ("y = Conv<strides=[2,2]>(x, w)", "float[1,3,5,5] x", "float[1,4,3,3] y", (4, 3, 1, 1)),
    "conv over time": ("y = Conv<pads=[1,1]>(x, w)", "float[1,3,9] x", "float[1,4,9] y", (4, 3, 3)),
    "matmul": ("y = MatMul(x, w)", "float[2,5,6] x", "float[2,5,4] y", (6, 4)),
    "matmul, turned": ("t = Transpose<perm=[1,0]>(w) y = MatMul(x, t)", "float[2,5,6] x", "float[2,5,4] y", (4, 6)),
    "gemm": ("y = Gemm(x, w)", "float[5,6] x", "float[5,4] y", (6, 4)),
    "gemm, turned": ("y = Gemm<transB=1>(x, w)", "float[5,6] x", "float[5,4] y", (4, 6)),
}


@pytest.mark.parametrize("kind", PRODUCTS)
def test_rows_by_the_matrix_are_the_output(kind: str, tmp_path: Path) -> None:
    body, inputs, outputs, shape = PRODUCTS[kind]
    weight = RNG.normal(size=shape).astype(np.float32)
    model = parse(body, inputs, outputs, w=weight)
    [product] = products(model.graph)
    x = RNG.normal(size=edit.known_dims(model.graph.inputs[0])).astype(np.float32)
    wanted = run(model, tmp_path, {"x": x})["y"]
    made = (product.rows(torch.from_numpy(x)) @ product.matrix()).numpy()
    flat = np.moveaxis(wanted, 1, -1) if kind.startswith("conv") else wanted
    np.testing.assert_allclose(made, flat.reshape(made.shape), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(product.restored(product.matrix()), weight)


def samples(made: tiny.Adapted) -> list[dict[str, torch.Tensor]]:
    first = prefill(made)
    second = {n: a[..., ::-1].copy() if n == "input_ids" else a for n, a in first.items()}
    return [{n: torch.from_numpy(a) for n, a in feeds.items()} for feeds in (first, second)]


def tapped(model: ir.Model, folder: Path, feeds: dict[str, torch.Tensor], name: str) -> Array:
    copy = model.clone()
    wanted = next(v for n in copy.graph for v in n.outputs if v.name == name)
    if wanted not in copy.graph.outputs:
        copy.graph.outputs.append(wanted)
    return run(copy, folder, {n: t.numpy() for n, t in feeds.items()})[name].astype(np.float64)


def test_the_walk_sees_what_the_quantized_graph_holds(tmp_path: Path) -> None:
    """Behind weights that were replaced; and how far that is from the float graph, with the stream it joins."""
    made, model = adapted("llama")
    feeds = samples(made)
    walk = Walk(model.graph, feeds, both=True)
    changed = model.clone()
    found = {}
    for stop in walk.visit():
        sums = walk.sums(stop)
        found[str(stop.source.name)] = (stop, sums)
        for product in stop.products:
            matrix = torch.round(product.matrix() * 8) / 8
            walk.replace(product, matrix)
            changed.graph.initializers[product.name].const_value = ir.tensor(product.restored(matrix).numpy())
    assert len(found) == 4 * 2 + 1
    for i, name in enumerate(sorted(found)):
        stop, sums = found[name]
        product = next((p for p in stop.products if p.stream is not None), stop.products[0])

        def rows(which: ir.Model, value: str, read: bool, i: int = i, product=product) -> Array:  # type: ignore[no-untyped-def]
            turn = product.rows if read else product.joined
            return np.concatenate([turn(torch.from_numpy(tapped(which, tmp_path / f"{i}", f, value))).numpy()
                                   for f in feeds])
        x, xf = rows(changed, name, True), rows(model, name, True)
        top = np.abs(x.T @ x).max()
        np.testing.assert_allclose(sums.gram.numpy(), x.T @ x, atol=1e-4 * top)
        np.testing.assert_allclose(sums.drift.numpy(), x.T @ (xf - x), atol=1e-4 * top)
        if product.stream is not None:
            gone = rows(model, str(product.stream.name), False) - rows(changed, str(product.stream.name), False)
            np.testing.assert_allclose(sums.streams[product.name].numpy(), x.T @ gone, atol=1e-4 * top)
    assert {p.name for s, _ in found.values() for p in s.products if p.stream is not None} == {
        f"model.layers.{i}.{n}.weight" for i in range(2) for n in ("self_attn.o_proj", "mlp.down_proj")}


def test_only_what_is_still_read_is_kept() -> None:
    _, model = adapted("llama")
    for stop in stops(model.graph, streams=True):
        made = [v for v in stop.kept if v.producer() is not None]
        assert len(made) <= 3, [v.name for v in made]


def test_one_after_the_other_beats_each_alone(tmp_path: Path) -> None:
    made, model = adapted("llama")
    feeds = samples(made)
    wanted = run(model, tmp_path / "f", prefill(made))["logits"]
    lost = {}
    nearest = Method("minmax", "nearest", 0, 0.0, False, False)
    for name, method in (("nearest", nearest), ("balanced", PRESETS["balanced"])):
        copy = model.clone()
        grids = {p.name: Grid(4, 16, lpbq=True) for p in products(copy.graph)}
        weights = sequential.quantize(copy, feeds, grids, method, lambda text: None)
        assert {w.name for w in weights} == set(grids)
        for weight in weights:  # nothing is left to round
            array = edit.constant(copy.graph.initializers[weight.name])
            assert array is not None
            np.testing.assert_array_equal(weight.form.dequantize(weight.form.quantize(array)), array)
            stored, outputs = footprint.stored_bits(weight.count, weight.form), weight.form.scale.size
            assert stored == 4 * weight.count + 32 * outputs + 4 * weight.count // 16
        lost[name] = float(np.square(run(copy, tmp_path / name, prefill(made))["logits"] - wanted).sum())
    assert lost["balanced"] < 0.5 * lost["nearest"]


def test_the_float_stream_stays_float(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the correction is told has gone missing is what rounding took; nothing at the first stop."""
    made, model = adapted("llama")
    seen: list[float] = []
    real = target.corrected

    def spy(weight, gram, drift, stream, share):  # type: ignore[no-untyped-def]
        seen.append(float(drift.norm() / gram.matrix.norm()))
        return real(weight, gram, drift, stream, share)
    monkeypatch.setattr(target, "corrected", spy)
    grids = {p.name: Grid(4) for p in products(model.graph)}
    sequential.quantize(model.clone(), samples(made), grids, PRESETS["balanced"], lambda text: None)
    assert seen[:3] == [0, 0, 0]
    assert min(seen[3:]) > 1e-3


def test_a_weight_without_a_grid_stays_as_it_is() -> None:
    made, model = adapted("llama")
    model = model.clone()
    before = {n: v.const_value.numpy().copy() for n, v in model.graph.initializers.items() if v.const_value is not None}
    assert sequential.quantize(model, samples(made), {}, PRESETS["balanced"], lambda text: None) == []
    for name, value in model.graph.initializers.items():
        assert value.const_value is not None
        np.testing.assert_array_equal(value.const_value.numpy(), before[name])


def test_an_op_that_cannot_be_run_is_named() -> None:
    model = parse("t = Det(x) u = Unsqueeze(t, a) y = MatMul(u, w)", "float[4,3,3] x", "float[1,2] y",
                  w=np.ones((4, 2), np.float32), a=np.array([0], np.int64))
    with pytest.raises(UnsupportedError, match="Det"):
        sequential.quantize(model, [{"x": torch.ones(4, 3, 3)}], {"w": Grid(8)}, PRESETS["fast"], lambda text: None)
