"""A tiny tied decoder through every stage before the compiler, for a GPU: its numbers, its grids, its keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import tiny_checkpoint
import yaml
from edgeforge_runtime.session import Session

from edgeforge import gates, keys, pipeline, recipe, source
from edgeforge.artifact import FLOAT
from edgeforge.build import Build
from edgeforge.encodings import FILE, Table
from edgeforge.gates import Check
from edgeforge.graph import edit, store
from edgeforge.quantize.products import products
from edgeforge.stages.plan import plan

Ran = tuple[dict[str, Path], dict[str, Check]]
HEAD, DOWN = "lm_head.weight", "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Build]:
    root = tmp_path_factory.mktemp("float16")
    tiny_checkpoint.make(root / "tied", tie_word_embeddings=True)

    def start(**options: object) -> Build:
        raw = {"model": "tied", "out": "out", "target": {"chip": "geforce-rtx-4090", "context": 128, "prefill": 32},
               "calibrate": {"windows": 4, "tokens": 128, "samples": 0}, "quantize": options}
        (root / "r.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
        made = recipe.load(root / "r.yaml")
        return pipeline.start(made, source.open_source(made.model), 1)

    return start


@pytest.fixture(scope="module")
def ran(job: Callable[..., Build], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ran]:
    """Stages up to export; what two recipes share is made once, as in a build."""
    root, done = tmp_path_factory.mktemp("stages"), dict[str, dict[str, Check]]()

    def run(**options: object) -> Ran:
        build, places, known, checks = job(**options), dict[str, Path](), dict[str, str](), dict[str, Check]()
        for stage in plan(build.recipe)[:-2]:
            known[stage.name] = key = keys.key(stage, build, known)
            places[stage.name] = root / key[:16]
            if key not in done:
                places[stage.name].mkdir()
                made = stage.run(build, {n: places[n] for n in stage.needs}, places[stage.name])
                gates.save(places[stage.name], made)  # transform's gate is held against what optimize measured
                done[key] = {c.name: c for c in made}
            checks |= done[key]
        return places, checks

    return run


def _table(ran: Ran) -> Table:
    return Table.load(ran[0]["quantize"] / FILE)


def test_float16_as_it_is(ran: Callable[..., Ran]) -> None:
    """Nothing is rounded, nothing read to round by, and head and table stay one tensor."""
    made = ran(weights=16)
    assert len(_table(made)) == 0
    assert made[1]["quantize: logits"].value > 100
    assert made[1]["quantize: stored"].value == 16
    assert "text" not in made[0]
    assert HEAD in store.load(made[0]["quantize"] / FLOAT).graph.initializers
    assert "model.embed_tokens.weight" not in store.load(made[0]["quantize"] / FLOAT).graph.initializers


@pytest.mark.parametrize(("options", "bits", "block", "decibels"), [
    ({"weights": 8}, 8, None, 30), ({"weights": 4, "block": 64}, 4, 64, 8), ({"weights": 4, "block": 128}, 4, 128, 8)])
def test_weights_alone_are_rounded(ran: Callable[..., Ran], options: dict[str, object], bits: int, block: int | None,
                                   decibels: float) -> None:
    made = ran(**options)
    table, checks = _table(made), made[1]
    assert set(table) == {p.name for p in products(store.load(made[0]["quantize"] / FLOAT).graph)}
    found = table[DOWN]
    assert (found.bits, found.block, found.block_scale, found.symmetric) == (bits, block, None, True)
    assert found.scale.shape == ((64,) if block is None else (64, 128 // block))
    assert table[HEAD].bits == 8
    assert all(np.array_equal(e.scale, e.scale.astype(np.float16).astype(np.float32)) for e in table.values())
    assert checks["quantize: logits"].value > decibels
    assert "calibrate" not in made[0]


def test_a_tied_head_is_rounded_without_any_transform_before(ran: Callable[..., Ran]) -> None:
    """Nothing has untied it before the search reads its weight."""
    made = ran(weights=8, transforms=[])
    assert _table(made)[HEAD].bits == 8
    assert made[1]["quantize: logits"].value > 30


def test_a_block_that_does_not_divide_is_reported(ran: Callable[..., Ran]) -> None:
    note = ran(weights=4, block=128)[1]["quantize: weights left per channel"].note
    assert "model.layers.0.mlp.up_proj.weight: 64 inputs" in note
    assert DOWN not in note


def test_codes_are_the_nearest_of_the_float_model(ran: Callable[..., Ran]) -> None:
    """What a backend rounds to nearest is what was fitted, to the last bit."""
    folder = ran(weights=4, block=64)[0]["quantize"]
    table, model, printed = _table(ran(weights=4, block=64)), store.load(folder / FLOAT), store.load(folder)
    for name, encoding in table.items():
        array = edit.constant(model.graph.initializers[name])
        codes = edit.constant(printed.graph.initializers[name])
        assert array is not None
        assert codes is not None
        np.testing.assert_array_equal(encoding.quantize(array), codes.astype(np.int64))
        np.testing.assert_array_equal(encoding.dequantize(encoding.quantize(array)), array)


def test_what_8_bit_products_read_is_8_bits_with_zero_at_zero(ran: Callable[..., Ran]) -> None:
    made = ran(activations=8)
    table, graph = _table(made), store.load(made[0]["quantize"] / FLOAT).graph
    read = {str(p.source.name) for p in products(graph)}
    assert set(table) == read | {p.name for p in products(graph)}
    for name in read:
        assert (table[name].dtype, int(table[name].zero_point), table[name].scale.ndim) == ("int8", 0, 0)
    printed = store.load(made[0]["quantize"]).graph
    assert {v.dtype for v in printed.inputs} == {ir.DataType.FLOAT, ir.DataType.INT32}
    assert made[1]["quantize: KL"].gate == "quantize_kl (4 bits)"
    assert 0 < made[1]["quantize: KL"].value < 0.1


def test_fp8_is_what_8_bits_are(ran: Callable[..., Ran]) -> None:
    """Weights and what they read; every code the nearest of the float model, to the last bit."""
    made = ran(activations=8, eight_bits="fp8")
    folder, table = made[0]["quantize"], _table(made)
    model, printed = store.load(folder / FLOAT), store.load(folder)
    assert set(table) == {str(v) for p in products(model.graph) for v in (p.source.name, p.name)}
    assert {e.dtype for e in table.values()} == {"float8e4m3fn"}
    for name in (HEAD, DOWN):
        array, codes = (edit.constant(m.graph.initializers[name]) for m in (model, printed))
        assert array is not None
        assert codes is not None
        assert printed.graph.initializers[name].dtype == ir.DataType.FLOAT8E4M3FN
        assert table[name].scale.shape == (len(array),)
        np.testing.assert_array_equal(table[name].quantize(array), codes.view(np.uint8))
        np.testing.assert_array_equal(table[name].dequantize(table[name].quantize(array)), array)
    assert made[1]["quantize: stored"].value == pytest.approx(ran(activations=8)[1]["quantize: stored"].value)
    assert made[1]["quantize: KL"].gate == "quantize_kl (4 bits)"
    assert 0 < made[1]["quantize: KL"].value < 0.1
    with Session.open(folder) as session:
        assert np.isfinite(session.prompt([5, 6, 7])).all()


def test_a_budget_counts_float16_steps(ran: Callable[..., Ran]) -> None:
    made = ran(weights=4, block=64, quality="fast", budget={"bits_per_weight": 5})
    bits = made[1]["quantize: bits a weight, head apart"].value
    eight = {name for name, e in _table(made).items() if e.bits == 8} - {HEAD}
    assert 4.25 < bits <= 5
    assert eight


def test_it_generates_on_the_cpu_in_floats(ran: Callable[..., Ran]) -> None:
    with Session.open(ran(weights=4, block=64)[0]["quantize"]) as session:
        logits = session.prompt([5, 6, 7])
        assert np.isfinite(logits).all()
        assert np.isfinite(session.step(int(logits.argmax()))).all()


def test_vectors_are_floats(ran: Callable[..., Ran]) -> None:
    folder = ran(weights=4, block=64)[0]["export"] / "vectors"
    assert sorted(p.name for p in folder.iterdir()) == ["ar1_0", "ar1_1", "ar1_2", "ar32"]
    with np.load(folder / "ar32" / "inputs.npz") as inputs:
        assert inputs["past_key_0_in"].dtype == np.float32
        assert inputs["attention_mask"].min() == -10000


def test_only_what_a_change_touches_gets_another_key(job: Callable[..., Build]) -> None:
    def keyed(**options: object) -> dict[str, str]:
        build, known = job(**options), dict[str, str]()
        for stage in plan(build.recipe)[:-2]:
            known[stage.name] = keys.key(stage, build, known)
        return known

    eight, four = keyed(weights=8), keyed(weights=4, block=64)
    assert {n for n in eight if eight[n] != four[n]} == {"quantize", "export"}
    assert keyed(weights=8) == eight
    scaled = [keyed(weights=8, transforms=["scale_channels"], eight_bits=b) for b in ("int8", "fp8")]
    assert {n for n in eight if scaled[0][n] != scaled[1][n]} == {"transform", "quantize", "export"}
