"""What is told before any work, and which TensorRT builds: by the recipe, the GPU, and what is installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import tiny
import trt_tiny as t
import yaml
from onnx import TensorProto, helper

from edgeforge import recipe, targets
from edgeforge.adapt import shape
from edgeforge.backends import backend, faults, names, reader
from edgeforge.backends.tensorrt import health, limits, trial, trtexec, wheel
from edgeforge.backends.tensorrt.emit import emit
from edgeforge.backends.tensorrt.engine import build_engine
from edgeforge.backends.tensorrt.job import EngineJob
from edgeforge.bisect import run
from edgeforge.encodings import Table
from edgeforge.errors import CompilerError, RecipeError, UnsupportedError
from edgeforge.findings import Facts, Finding
from edgeforge.graph import edit, store


def _facts(tmp_path: Path, chip: str, **quantize: object) -> Facts:
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump({"model": "m", "out": "o", "target": {"chip": chip}, "quantize": quantize}))
    return Facts(recipe.load(path), targets.chip(chip), None, {})


def _found(tmp_path: Path, chip: str, **quantize: object) -> list[Finding]:
    return list(backend("tensorrt").check(_facts(tmp_path, chip, **quantize)))


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def _installed(monkeypatch: pytest.MonkeyPatch, edition: wheel.Edition, version: str) -> None:
    there = SimpleNamespace(origin="there")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: there if name == edition.module else None)
    monkeypatch.setattr(wheel, "_version", lambda asked: version)


def test_an_unknown_gpu_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"no chip 'geforce-rtx-4091' \(did you mean 'geforce-rtx-4090'\? `"):
        _facts(tmp_path, "geforce-rtx-4091")


def test_a_phone_is_no_gpu() -> None:
    with pytest.raises(UnsupportedError, match="snapdragon-8-gen-3 is no GPU"):
        limits.gpu(targets.chip("snapdragon-8-gen-3"))


TURING: list[tuple[dict[str, object], str, str]] = [
    ({"weights": 4, "activations": 8}, "weights", "4-bit"),
    ({"weights": 8, "head": 4, "activations": 8}, "head", "4-bit"),
    ({"weights": 16, "exceptions": {"*.down_proj.weight": 4}}, "exceptions", "4-bit"),
    ({}, "weights", "8-bit"), ({"weights": 16, "head": 8}, "head", "8-bit"),
    ({"weights": 16, "exceptions": {"*.down_proj.weight": 8}}, "exceptions", "8-bit")]


@pytest.mark.parametrize(("quantize", "key", "bits"), TURING)
def test_what_turing_lacks_is_refused_by_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                 quantize: dict[str, object], key: str, bits: str) -> None:
    """Beside test_turing of the engines: what is refused here fails there."""
    _installed(monkeypatch, wheel.RTX, wheel.TESTED)
    (finding,) = _found(tmp_path, "geforce-rtx-2080", **quantize)
    assert finding.severity == "recipe"
    assert f": quantize.{key}" in finding.where
    assert finding.what.startswith(bits)
    assert "geforce-rtx-2080 (7.5)" in finding.what
    assert f"quantize.{key} to 16" in finding.change
    assert _found(tmp_path, "geforce-rtx-3080", **quantize) == []


@pytest.mark.parametrize("quantize", [
    {"weights": 8, "activations": 8}, {"weights": 16}, {"weights": 16, "head": 8, "activations": 8},
    {"weights": 4, "exceptions": {"*": 16}}])
def test_what_turing_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantize: dict[str, object]) -> None:
    """The first two are what the findings advise."""
    _installed(monkeypatch, wheel.RTX, wheel.TESTED)
    assert _found(tmp_path, "geforce-rtx-2080", **quantize) == []


@pytest.mark.parametrize(("head", "chip", "config", "found"), [
    (64, "rtx-any", {}, 0), (256, "rtx-any", {}, 0), (8, "rtx-any", {}, 1), (20, "rtx-any", {}, 1),
    (264, "geforce-rtx-2080", {}, 1), (264, "rtx-any", {"attn_logit_softcapping": 50}, 0),
    (264, "jetson-agx-orin", {}, 0)])
def test_heads_without_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: int, chip: str,
                                config: dict[str, object], found: int) -> None:
    """Beside test_heads_with_a_kernel_and_without of the engines."""
    _installed(monkeypatch, wheel.RTX, wheel.TESTED)
    made = tiny.config("llama", head_dim=head)
    facts = replace(_facts(tmp_path, chip, weights=16), config=config, decoder=shape.decoder(made, targets.TRT, 64))
    assert [f.where for f in backend("tensorrt").check(facts) if f.severity == "error"] == ["model"] * found


def test_a_card_says_which_int8() -> None:
    assert "int8 by int8" in backend("tensorrt").card(targets.chip("geforce-rtx-2060")).line
    assert "int8 by int8" not in backend("tensorrt").card(targets.chip("a100")).line


@pytest.mark.parametrize(("chip", "capability"), [
    ("geforce-rtx-3090", "8.6"), ("a100", "8.0"), ("jetson-agx-orin", "8.7"), ("rtx-any", "8.0, 8.6, 8.9, 12.0, 12.1")])
def test_fp8_before_ada(tmp_path: Path, chip: str, capability: str) -> None:
    """Every GPU that the engine is for has to have it."""
    (finding,) = [f for f in _found(tmp_path, chip, weights=8, activations=8, eight_bits="fp8")
                  if f.severity == "recipe"]
    assert finding.where == f"{tmp_path}/r.yaml:5: quantize.eight_bits"
    assert f"fp8, and {chip} ({capability}) has no products of it" in finding.what
    assert not backend("tensorrt").card(targets.chip(chip)).facts["fp8"]


@pytest.mark.parametrize("chip", ["geforce-rtx-4090", "geforce-rtx-5090", "h100", "jetson-agx-thor"])
def test_fp8_from_ada_on(tmp_path: Path, chip: str) -> None:
    assert not [f for f in _found(tmp_path, chip, eight_bits="fp8") if f.severity == "recipe"]
    assert backend("tensorrt").card(targets.chip(chip)).facts["fp8"]


@pytest.mark.usefixtures("nothing_installed")
def test_what_needs_no_tensorrt_is_told_without_it(tmp_path: Path) -> None:
    assert [f.severity for f in _found(tmp_path, "geforce-rtx-3090", eight_bits="fp8")] == ["recipe", "error"]
    assert [f.severity for f in _found(tmp_path, "geforce-rtx-2080", weights=4)] == [
        "recipe", "recipe", "error"], "the head's 8 bits too"
    assert [f.severity for f in _found(tmp_path, "jetson-agx-orin", eight_bits="fp8")] == ["recipe"]


@pytest.mark.usefixtures("nothing_installed")
def test_without_tensorrt(tmp_path: Path) -> None:
    (finding,) = _found(tmp_path, "geforce-rtx-4090")
    assert (finding.severity, finding.change) == ("error", wheel.INSTALL)
    assert _found(tmp_path, "jetson-agx-orin") == [], "its engine is built there"
    assert not limits.builds_here(limits.gpu(targets.chip("jetson-agx-orin")))
    (tool,) = health.tools()
    assert (tool.version, tool.problem) == (None, "")
    assert "not installed" in health.abilities(targets.chip("geforce-rtx-4090")).compile


def test_a_folder_called_tensorrt_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensorrt").mkdir()
    (tmp_path / "tensorrt_rtx").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in ("tensorrt", "tensorrt_rtx"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    with pytest.raises(CompilerError, match="TensorRT is not installed"):
        wheel.find()


def test_old_and_untested_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch, wheel.RTX, "1.6.1.120")
    (finding,) = _found(tmp_path, "geforce-rtx-4090")
    assert "1.6.1.120 is installed, and 1.7 or later is needed" in finding.what
    (tool,) = health.tools()
    assert tool.problem
    _installed(monkeypatch, wheel.RTX, "1.9.0")
    (finding,) = _found(tmp_path, "geforce-rtx-4090")
    assert finding.severity == "warning"


def test_enterprise_builds_for_the_gpu_that_it_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch, wheel.ENTERPRISE, "10.16.1.11")
    for chip in ("geforce-rtx-4090", "jetson-agx-orin"):
        (finding,) = _found(tmp_path, chip)
        assert f"has to be a {chip}" in finding.what
        assert limits.compute(limits.gpu(targets.chip(chip))) == ()
        assert limits.builds_here(limits.gpu(targets.chip(chip)))
    _installed(monkeypatch, wheel.ENTERPRISE, "10.3.0")
    with pytest.raises(CompilerError, match=r"10\.16 or later is needed"):
        wheel.find()


def test_jetsons_are_built_for_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch, wheel.RTX, wheel.TESTED)
    (finding,) = _found(tmp_path, "jetson-agx-orin")
    assert (finding.severity, "build_engine.sh" in finding.what) == ("warning", True)


def test_cards_and_faults() -> None:
    card = backend("tensorrt").card(targets.chip("rtx-any"))
    assert card.facts["compute"] == ["8.0", "8.6", "8.9", "12.0", "12.1"]
    rows = [f for name in names() for f in backend(name).faults]
    (fault,) = faults.in_text(rows, "Non-zero zero point is not supported")
    assert fault.reproduced
    owner = reader(Path("model.engine"))
    assert owner is not None
    assert owner.suffixes == (".engine",)


def test_the_proof_is_a_real_build() -> None:
    pytest.importorskip("tensorrt_rtx")
    proof = health.proof(targets.chip("rtx-any"))
    assert proof.problem == ""
    assert "1.7.1" in proof.detail
    assert health.abilities(targets.chip("geforce-rtx-4090")).compile == ""


def test_a_failed_job_can_be_tried_again_in_pieces(tmp_path: Path) -> None:
    """bisect's way: the job of a build, each attempt in a folder of its own."""
    pytest.importorskip("tensorrt_rtx")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT16, [1, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT16, [1, 8])
    for name, op in (("bad", "NoSuchOp"), ("good", "Relu")):
        graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], f"y:{op}")], "g", [x], [y])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10),
                  tmp_path / f"{name}.onnx")
    job = EngineJob(tmp_path / "bad.onnx", ("SM86",), ({"x": (1, 8)},), tmp_path / "out", tmp_path / "failed")
    with pytest.raises(CompilerError, match="y: NoSuchOp: "):
        build_engine(job, 60)
    (found,) = trial.of_job(tmp_path / "failed") or []
    assert found.known is not None
    again = found.attempt(found.model, None, tmp_path, 60).ending
    assert again is not None
    assert again.same(found.known)
    assert found.attempt(tmp_path / "good.onnx", None, tmp_path, 60).ending is None
    (tmp_path / "piece").mkdir(exist_ok=True)
    assert backend("qnn").trials(tmp_path / "failed") is None
    assert found.write(tmp_path / "good.onnx", None, tmp_path / "piece").endswith("tensorrt.worker engine_job.json")
    assert trial.of_job(tmp_path) is None


def test_bisect_finds_the_node_in_a_whole_decoder(tmp_path: Path) -> None:
    """A zero point in one weight of an emitted model, whose width is open: the smallest piece is that one product."""
    pytest.importorskip("tensorrt_rtx")
    model = t.floats("llama", 1)
    emitted = emit(model, t.table(model, bits=8), t.CONTEXT)
    graph = emitted.model.graph
    spoiled = next(n for n in graph if n.op_type == "DequantizeLinear" and "down_proj" in str(n.name))
    codes = spoiled.inputs[0]
    assert codes is not None
    zero = edit.initializer(graph, "spoiled", np.full(codes.shape[0] if codes.shape else 1, 3, np.int8))
    spoiled.resize_inputs(3)
    spoiled.replace_input_with(2, zero)
    job = EngineJob(store.save(emitted.model, tmp_path), ("SM86",), emitted.profiles(t.WIDTHS), tmp_path / "out",
                    tmp_path / "failed")
    with pytest.raises(CompilerError, match="down_proj.weight/dq: DequantizeLinear: "):
        build_engine(job, 60)
    trials = backend("tensorrt").trials(tmp_path / "failed")
    assert trials is not None
    found = run.bisect(trials, tmp_path / "found", 60, None, lambda text: None)
    assert found.units[0] <= 2
    assert any("down_proj" in name for name in found.nodes)
    assert found.verified


def test_the_command_for_a_jetson_has_every_open_input(tmp_path: Path) -> None:
    emitted = emit(t.floats("llama", 1), Table(), t.CONTEXT)
    store.save(emitted.model, tmp_path)
    trtexec.write(tmp_path, emitted.profiles(t.WIDTHS), emitted.model)
    text = (tmp_path / trtexec.SCRIPT).read_text(encoding="utf-8")
    assert "--profile=0" in text
    assert "--profile=1" in text
    assert text.count("input_ids:1x16,attention_mask:1x1x16x64,position_ids_cos:1x1x16x16") == 3
    assert "past_" not in text, "fixed shapes need no bounds"
    assert "--decomposableAttentions='*'" in text, "without it a GPU that lacks the kernel builds nothing"
