"""Several packages in a row, caches that the model keeps, and what Apple's systems read."""

from __future__ import annotations

from pathlib import Path

import coreml_tiny
import numpy as np
import pytest
import tiny
from edgeforge_runtime.manifest import IDS, LOGITS, WRITE
from edgeforge_runtime.session import Session

from edgeforge.backends.coreml import chain, chunks, decoder, lint, mil
from edgeforge.backends.coreml.interpret import program
from edgeforge.backends.coreml.package import MODEL, WEIGHTS
from edgeforge.errors import UnsupportedError

EXACT, ROUNDED = 100, 45
MOST = 16_000
"""bytes: the tiny llama with 8-bit weights becomes three packages"""


def test_a_model_over_the_limit_is_several_packages_that_answer_as_one(tmp_path: Path) -> None:
    made, model = coreml_tiny.graph("llama")
    table = coreml_tiny.table(model, 8)
    emitted = coreml_tiny.emit(tmp_path, made, model, table, wanted=decoder.Wanted(most=MOST))
    packages = chain.load(tmp_path)
    assert [p.file for p in packages] == [f"tiny_{k}_of_3.mlpackage" for k in (1, 2, 3)]
    assert all((tmp_path / p.file / WEIGHTS).stat().st_size < MOST + decoder._SLACK for p in packages)
    assert all(p.sharing.share < 1.001 for p in packages)
    graph = chain.target(packages, "", coreml_tiny.WIDTHS, tiny.CONTEXT).graphs[0]
    assert [t.name for t in graph.parts[0].inputs] == [IDS]
    assert [t.name for t in graph.parts[0].outputs] == [t.name for t in graph.parts[1].inputs][:1] == ["handover_1"]
    assert "handover_1" not in {t.name for side in graph.boundary() for t in side.values()}
    assert min(coreml_tiny.decibels(emitted, "float32")) > EXACT
    assert min(coreml_tiny.decibels(emitted, "float16")) > ROUNDED


def test_a_wrong_handover_is_heard(tmp_path: Path) -> None:
    """The middle package of a model with other weights."""
    made, model = coreml_tiny.graph("llama")
    wanted = decoder.Wanted(most=MOST)
    emitted = coreml_tiny.emit(tmp_path, made, model, coreml_tiny.table(model, 8), wanted=wanted)
    package = tmp_path / "tiny_2_of_3.mlpackage"
    op = next(o for o in program.load(package)["decode"].ops if o.name.endswith("mlp_down_proj_weight"))
    stored = op.arguments["data"][0]
    assert isinstance(stored, program.Stored)
    raw = np.fromfile(package / WEIGHTS, np.uint8)
    raw[stored.offset + 64 : stored.offset + 64 + 256] = 0
    raw.tofile(package / WEIGHTS)
    assert min(coreml_tiny.decibels(emitted, "float32")) < 40


@pytest.mark.parametrize(("most", "message"), [(9_000, "the embedding holds 10,248 bytes"),
                                               (3_000, "one layer needs")])
def test_what_no_package_holds_is_refused(most: int, message: str) -> None:
    _, model = coreml_tiny.graph("llama")
    with pytest.raises(UnsupportedError, match=message) as caught:
        chunks.cut(model.clone(), coreml_tiny.table(model, 8), most)
    assert caught.value.hint.startswith("raise apple.package_bytes")


def test_names_sort_as_they_run() -> None:
    assert chunks.names("model", ".mlpackage", 1) == ["model.mlpackage"]
    many = chunks.names("model", ".mlpackage", 12)
    assert many[0] == "model_01_of_12.mlpackage"
    assert sorted(many) == many


@pytest.mark.parametrize("most", [1 << 40, MOST])
def test_a_model_that_keeps_its_cache(most: int, tmp_path: Path) -> None:
    """Prefill's tokens are in the state when decode reads it; and a conversation that goes back over some is right."""
    made, model = coreml_tiny.graph("llama")
    wanted = decoder.Wanted(most=most, state=True)
    emitted = coreml_tiny.emit(tmp_path, made, model, coreml_tiny.table(model, 8), wanted=wanted)
    packages = chain.load(tmp_path)
    for graph in chain.target(packages, "", coreml_tiny.WIDTHS, tiny.CONTEXT).graphs:
        inputs, outputs = graph.boundary()
        assert {n for n in inputs if n.startswith("past_")} == set()
        assert (inputs[WRITE].dtype, inputs[WRITE].shape, set(outputs)) == ("int32", (1,), {LOGITS})
        assert outputs[LOGITS].shape == (1, graph.ar, made.decoder.vocab)
    assert min(coreml_tiny.decibels(emitted, "float32")) > EXACT
    assert min(coreml_tiny.decibels(emitted, "float16")) > ROUNDED
    ids = [int(t) for t in tiny.ids(24)]
    with (coreml_tiny.simulated(emitted, "float32") as session,
          Session.open(emitted.reference, threads=1, exact=True) as expected):
        for length in (24, 13):
            again = [*ids[:length], 5, 7]
            np.testing.assert_allclose(session.prompt(again), expected.prompt(again), atol=1e-4)


def test_states_are_float16_and_nothing_else_leaves_the_engine(tmp_path: Path) -> None:
    made, model = coreml_tiny.graph("llama")
    coreml_tiny.emit(tmp_path, made, model, wanted=decoder.Wanted(state=True))
    functions = program.load(tmp_path / "tiny.mlpackage")
    for function in functions.values():
        assert {s.name: s.type for s in function.states} == {
            f"past_{kind}_{i}": "FLOAT16" for kind in ("key", "value") for i in (0, 1)}
        assert {"read_state", "write_state", "slice_update"} <= {op.type for op in function.ops}
    assert lint.lint(functions) == []
    assert [said.partition(" (")[0] for said in lint.states(functions)] == [
        "past_key_0: 48 wide, no multiple of 32", "past_key_1: 48 wide, no multiple of 32",
        "past_value_0: 8 wide, no multiple of 32", "past_value_1: 8 wide, no multiple of 32"]


@pytest.mark.parametrize(("specification", "opset"), [(9, "CoreML8"), (10, "CoreML9")])
def test_the_system_decides_the_opset(specification: int, opset: str, tmp_path: Path) -> None:
    made, model = coreml_tiny.graph("llama")
    coreml_tiny.emit(tmp_path, made, model, wanted=decoder.Wanted(specification=specification))
    spec = mil.proto.Model_pb2.Model.FromString((tmp_path / "tiny.mlpackage" / MODEL).read_bytes())
    assert spec.specificationVersion == specification
    assert {f.opset for f in spec.mlProgram.functions.values()} == {opset}
