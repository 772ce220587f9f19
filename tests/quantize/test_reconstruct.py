"""Blocks tuned as a whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from quant_graphs import adapted, parse, prefill, run
from test_sequential import samples

from edgeforge.encodings import equal
from edgeforge.graph import edit
from edgeforge.metrics import sqnr_db
from edgeforge.quantize import reconstruct, sequential
from edgeforge.quantize.products import products
from edgeforge.quantize.quality import PRESETS
from edgeforge.quantize.walk import Walk, between, stops
from edgeforge.quantize.weights.fit import Method
from edgeforge.quantize.weights.grid import Grid
from edgeforge.stages import quantize


def grids(model: ir.Model) -> dict[str, Grid]:
    return {p.name: Grid(4, 16, lpbq=True) for p in products(model.graph)}


def test_blocks_lie_between_single_values() -> None:
    """Attention, MLP, attention, MLP: at the stops before q_proj and gate_proj one value holds all."""
    _, model = adapted("llama")
    cuts = [s.cut.name if s.cut is not None else None for s in stops(model.graph, streams=True)]
    assert [c is not None for c in cuts] == [True, False] * 4 + [True]
    assert cuts[2] == "model.layers.0/Add"
    assert cuts[4] == "model.layers.0"


def tuned(monkeypatch: pytest.MonkeyPatch) -> tuple[list[tuple[float, float]], list[float]]:
    """Of each block of a tiny Llama: how far its end is before and after, and how far codes moved in the mean."""
    made, model = adapted("llama")
    errors: list[tuple[float, float]] = []
    moved: list[float] = []
    real = reconstruct.tune

    def spy(block, starts, ends, shares, correction):  # type: ignore[no-untyped-def]
        found = real(block, starts, ends, shares, correction)
        assert found is not None
        for (_, old), new in zip(block.fitted, found[0], strict=True):
            apart = (new.codes.float() - old.codes.float()).abs()
            assert apart.max() <= 1
            assert new.codes.min() >= -8
            assert new.codes.max() <= 7
            moved.append(float(apart.mean()))
        before = {p.weight: p.restored(f.reals) for p, f in block.fitted}
        after = {p.weight: p.restored(f.reals) for (p, _), f in zip(block.fitted, found[0], strict=True)} | found[1]
        fixed = reconstruct.constants(block.nodes)
        errors.append(tuple(float(sum(reconstruct._error(reconstruct._run(block, {**s, **fixed, **w}), e, None)
                                      for s, e in zip(starts, ends, strict=True))) for w in (before, after)))
        return found
    with monkeypatch.context() as patch:
        patch.setattr(sequential, "tune", spy)
        method = Method("minmax", "nearest", 0, 1.0, False, True)
        sequential.quantize(model.clone(), samples(made), grids(model), method, lambda text: None)
    return errors, moved


def test_tuning_brings_a_block_nearer_to_the_float_model(monkeypatch: pytest.MonkeyPatch) -> None:
    errors, moved = tuned(monkeypatch)
    assert len(errors) == 4
    assert all(after < before for before, after in errors)
    monkeypatch.setattr(reconstruct, "CODE_RATE", 0.0)
    steps, still = tuned(monkeypatch)
    assert set(still) == {0}
    assert max(moved) > 0
    whole = [sum(of) for of in zip(*errors, strict=True)], [sum(of) for of in zip(*steps, strict=True)]
    assert whole[0][1] < whole[1][1] < 0.97 * whole[1][0]


def test_nothing_is_solved_where_nothing_is_to_be_corrected() -> None:
    """What cannot be solved (see test_not_finite.py) need not be, with rounding to nearest."""
    weights = {n: np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32) for n in "abc"}
    model = parse("p = MatMul(x, a) q = MatMul(p, b) y = MatMul(q, c)", "float[1,4] x", "float[1,4] y", **weights)
    found = sequential.quantize(model, [{"x": torch.full((1, 4), 1e-22)}], {n: Grid(4) for n in "abc"},
                                Method("minmax", "nearest", 0, 0, False, True), lambda text: None)
    assert [w.name for w in found] == ["a", "b", "c"]


def said(weights: list[sequential.Weight], method: Method) -> list[str]:
    return [f"{c.value:g} {c.unit}{': ' + c.note if c.note else ''}" for c in quantize._tuned_checks(weights, method)]


@pytest.mark.parametrize(("body", "note"), [
    ("y = MatMul(x, a)", "0 of 1: 1 lie between no two places where one value holds all"),
    ("p = MatMul(x, a) q = Relu(p) y = MatMul(q, b)", "0 of 2: 2 lie between no two places where one value holds all"),
    ("p = MatMul(x, a) q = Relu(p) r = MatMul(q, b) s = Relu(r) y = MatMul(s, c)",
     "1 of 3: 2 lie between no two places where one value holds all"),
])
def test_how_much_was_tuned_is_told(body: str, note: str) -> None:
    """What comes before the first place where one value holds all, or behind the last, is in no block."""
    rng = np.random.default_rng(0)
    weights = {n: rng.normal(size=(16, 16)).astype(np.float32) for n in "abc" if f", {n})" in body}
    model = parse(body, "float[40,16] x", "float[40,16] y", **weights)
    feeds = [{"x": torch.from_numpy(rng.normal(size=(40, 16)).astype(np.float32))} for _ in range(3)]
    method = Method("minmax", "nearest", 0, 1, False, True)
    found = sequential.quantize(model, feeds, {n: Grid(4) for n in weights}, method, lambda text: None)
    assert said(found, method) == [note]
    assert said(found, PRESETS["balanced"]) == []


def test_a_tuning_that_is_thrown_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rate that leads away from everything."""
    monkeypatch.setattr(reconstruct, "RATE", 10.0)
    made, model = adapted("llama")
    method = Method("minmax", "nearest", 0, 0, False, True)
    plain = sequential.quantize(model.clone(), samples(made), grids(model),
                                Method("minmax", "nearest", 0, 0, False, False), lambda text: None)
    found = sequential.quantize(model.clone(), samples(made), grids(model), method, lambda text: None)
    assert said(found, method) == ["0 of 15: 1 lie between no two places where one value holds all; 14 in blocks that "
                                   "tuning did not bring nearer"]
    assert all(equal(a.form, b.form) for a, b in zip(plain, found, strict=True))


def test_a_tuned_model_is_on_its_grid_and_nearer(tmp_path: Path) -> None:
    made, model = adapted("llama")
    feeds = samples(made)
    wanted = run(model, tmp_path / "f", prefill(made))["logits"]
    found = {}
    for tuned in (False, True):
        copy = model.clone()
        weights = sequential.quantize(copy, feeds, grids(copy), Method("minmax", "nearest", 0, 0.0, False, tuned),
                                      lambda text: None)
        for weight in weights:
            array = edit.constant(copy.graph.initializers[weight.name])
            assert array is not None
            np.testing.assert_array_equal(weight.form.dequantize(weight.form.quantize(array)), array)
        found[tuned] = sqnr_db(wanted, run(copy, tmp_path / str(tuned), prefill(made))["logits"])
    assert found[True] > found[False] + 0.1


def test_going_on_from_a_cut_is_going_all_the_way() -> None:
    made, model = adapted("llama")
    feeds = samples(made)
    walk = Walk(model.graph, feeds, both=True)
    start, starts = None, []
    for stop in walk.visit():
        if start is not None and stop.cut is not None:
            before = [dict(values) for values in walk._quantized]
            walk.resume(stop, between(start, [v for v in stop.kept if v.producer() is not None]), starts, {})
            for old, new in zip(before, walk._quantized, strict=True):
                assert set(old) == set(new)
                assert all(torch.equal(old[v], new[v]) for v in old)
        if stop.cut is not None:
            start, starts = stop.cut, walk.quantized(stop.cut)
