"""Recipe to bundle for a chip of Apple's: what the bundle holds and says, and what is refused before any work."""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_checkpoint
import yaml
from edgeforge_runtime.manifest import LOGITS, Manifest

from edgeforge import check, describe, gates, pipeline, recipe, targets
from edgeforge.backends import backend
from edgeforge.backends.coreml import chain, child, mil, package, parity
from edgeforge.backends.coreml.device import verify_on_mac
from edgeforge.backends.coreml.interpret import program
from edgeforge.backends.coreml.interpret.run import Interpreter
from edgeforge.backends.ending import ChildFailed
from edgeforge.cli import _guarded, app
from edgeforge.encodings import FILE, Table
from edgeforge.errors import GateError
from edgeforge.graph import edit, store
from edgeforge.pipeline import Event
from edgeforge.quantize.weights import palette_file


def _recipe(root: Path, name: str, **more: Any) -> Path:
    raw = {"model": "tiny", "out": f"out/{name}", "calibrate": {"windows": 4, "tokens": 96, "samples": 0},
           "target": {"chip": "apple-a18", "context": 96, "prefill": 32}, "quantize": {"weights": 4}} | more
    path = root / f"{name}.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("für den Mac")
    tiny_checkpoint.make(folder / "tiny", tie_word_embeddings=True)
    return folder


@pytest.fixture(scope="module")
def bundle(root: Path) -> Path:
    return pipeline.build(recipe.load(_recipe(root, "phone")), lambda event: None)


def test_the_bundle_holds_the_package_and_its_graphs(bundle: Path) -> None:
    manifest = Manifest.load(bundle)
    assert set(manifest.targets) == {"cpu", "ane", "coreml-sim"}
    assert (bundle / "device" / "golden" / "units").read_text(encoding="utf-8") == "CPU_AND_NE\n"
    prefill, decode = manifest.targets["ane"].graphs
    assert (prefill.ar, prefill.cl, decode.ar, decode.cl) == (32, 128, 1, 97), "96 cached tokens in both"
    assert prefill.boundary()[1][LOGITS].shape == (1, 1, tiny_checkpoint.VOCAB)
    assert {t.dtype for t in prefill.boundary()[0].values()} == {"int32", "float16"}
    assert (bundle / prefill.parts[0].file).is_file()
    assert manifest.model.masked == -40000


def test_the_report_holds_what_was_measured_and_what_was_not(bundle: Path) -> None:
    raw = json.loads((bundle / "report.json").read_text(encoding="utf-8"))
    assert "No Apple device ran this package" in raw["not_seen"][0]
    stage = raw["stages"][-1]
    assert (stage["name"], stage["tools"]["coremltools"]) == ("compile", "9.0")
    figures = {c["name"]: (float(c["value"]), c["threshold"]) for c in stage["checks"]}
    for name in ("prefill", "decode"):
        exact, least = figures[f"compile: {name} of the package in float32 against the float graph"]
        assert exact > 100 > least == 50
        rounded, least = figures[f"compile: {name} of the package in float16 against the float graph"]
        assert rounded > least == 45
    share, most = figures["compile: weights of both functions over the larger one's"]
    assert share < 1.001 < most == 1.03


@pytest.mark.parametrize(("chip", "gates", "most"), [
    ("apple-a18", {}, 1.03), ("apple-m4-gpu", {"emitted_db": 60}, 1.03), ("apple-a18", {"shared_bytes": 1.2}, 1.2),
    ("snapdragon-8-gen-3", {}, 1.05), ("geforce-rtx-4090", {}, 1.05)])
def test_what_sharing_may_cost_is_the_chip_s(root: Path, chip: str, gates: dict[str, float], most: float) -> None:
    made = recipe.load(_recipe(root, "shared", target={"chip": chip, "context": 96, "prefill": 32}, gates=gates))
    assert made.limits["shared_bytes"] == most


def test_weights_have_four_bits_and_the_untied_table_sixteen(bundle: Path) -> None:
    found = describe.describe(bundle / "device" / "model.mlpackage")
    assert [f["ops"]["constexpr_blockwise_shift_scale"] for f in found["functions"]] == [25, 25]
    weights = (bundle / "device" / "model.mlpackage" / package.WEIGHTS).stat().st_size
    hidden, layers, head = 64, 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128), tiny_checkpoint.VOCAB * 64
    assert weights < 2 * tiny_checkpoint.VOCAB * hidden + layers / 2 + head + 40000


@pytest.fixture(scope="module")
def looked_up(root: Path) -> Path:
    """Weights of 4 bits and a head of 6 as entries of tables."""
    options = {"weights": 4, "palette": 8, "head": 6, "exceptions": {"*.layers.1.mlp.down_proj.weight": 8}}
    return pipeline.build(recipe.load(_recipe(root, "tables", quantize=options)), lambda event: None)


def test_tables_reach_the_package_to_the_last_bit(root: Path, looked_up: Path) -> None:
    """The artifact's palettes, the QDQ model that was measured, and the package hold the same numbers."""
    found = describe.describe(looked_up / "device" / "model.mlpackage")
    assert [f["ops"]["constexpr_lut_to_dense"] for f in found["functions"]] == [24, 24]
    assert [f["ops"]["constexpr_blockwise_shift_scale"] for f in found["functions"]] == [1, 1]
    quantized = root / "out" / ".edgeforge" / "quantize" / Manifest.load(looked_up).stamps["stage.quantize"]
    palettes = palette_file.beside(quantized)
    assert {p.bits for n, p in palettes.items() if "lm_head" not in n} == {4}
    assert (palettes["lm_head.weight"].bits, palettes["lm_head.weight"].group) == (6, 8)
    down = "model.layers.0.mlp.down_proj.weight"
    ops = program.load(looked_up / "device" / "model.mlpackage")["decode"].ops
    held = next(op for op in ops if op.name == mil.spell(down, set()))
    codes, tables = (held.arguments[key][0] for key in ("indices", "lut"))
    assert isinstance(codes, program.Stored)
    assert isinstance(tables, program.Stored)
    np.testing.assert_array_equal(codes.read(), palettes[down].codes)
    np.testing.assert_array_equal(tables.read().reshape(-1, 16), palettes[down].tables)
    inits = store.load(quantized).graph.initializers
    np.testing.assert_array_equal(edit.constant(inits[down]), palettes[down].codes)
    np.testing.assert_array_equal(edit.constant(inits[f"{down}/tables"]), palettes[down].tables.ravel())
    named = store.load(quantized / "float").graph.initializers[down]
    np.testing.assert_array_equal(edit.constant(named), palettes[down].dequantize())


def test_tables_are_reported(looked_up: Path) -> None:
    raw = json.loads((looked_up / "report.json").read_text(encoding="utf-8"))
    figures = {c["name"]: float(c["value"]) for s in raw["stages"] for c in s["checks"]}
    assert figures["quantize: weights with a table for 8 outputs"] == 14
    hidden, head = 64, 6 + 16 * 64 / (8 * 64)
    layers = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128) - 64 * 128
    small = sum(n * (4 + 16 * 16 / (8 * i)) for n, i in ((layers - 64 * 128, hidden), (64 * 128, 128)))
    stored = small + 64 * 128 * 8 + 16 * 64 + tiny_checkpoint.VOCAB * hidden * head
    assert figures["quantize: stored"] == pytest.approx(stored / (layers + 64 * 128 + tiny_checkpoint.VOCAB * hidden))


def test_an_embedding_of_8_bits_reaches_the_package_to_the_last_bit(root: Path, bundle: Path) -> None:
    """A step a row in the table, in the QDQ model that was measured, and in the package, where a gather reads it."""
    made = recipe.load(_recipe(root, "rows", quantize={"weights": 4, "embedding": 8}, gates={"quantize_flips": 0.5}))
    rows = pipeline.build(made, lambda event: None)
    quantized = root / "out" / ".edgeforge" / "quantize" / Manifest.load(rows).stamps["stage.quantize"]
    (name,) = (n for n, e in Table.load(quantized / FILE).items() if e.bits == 8 and "lm_head" not in n)
    form = Table.load(quantized / FILE)[name]
    assert (form.axis, form.scale.shape) == (0, (tiny_checkpoint.VOCAB,))
    array = edit.constant(store.load(quantized / "float").graph.initializers[name])
    assert array is not None
    np.testing.assert_array_equal(edit.constant(store.load(quantized).graph.initializers[name]), form.quantize(array))
    for function in program.load(rows / "device" / "model.mlpackage").values():
        held = next(op for op in function.ops if op.name == mil.spell(name, set()))
        codes, steps = (held.arguments[key][0] for key in ("data", "scale"))
        assert isinstance(codes, program.Stored)
        assert isinstance(steps, program.Stored)
        np.testing.assert_array_equal(codes.read(), form.quantize(array))
        np.testing.assert_array_equal(steps.read().ravel().astype(np.float32), form.scale)
        (gather,) = (op for op in function.ops if op.type == "gather")
        assert gather.arguments["x"][0] == program.Name(held.outputs[0].name)
    less, whole = ((b / "device" / "model.mlpackage" / package.WEIGHTS).stat().st_size for b in (rows, bundle))
    assert whole - less == pytest.approx(tiny_checkpoint.VOCAB * (64 - 2), abs=256), "a byte a number, less the steps"
    forecast = check.examine(made).facts.estimate
    assert forecast is not None
    assert forecast.weights == pytest.approx(less, rel=0.1)


def test_the_device_folder_can_be_checked_on_a_mac(bundle: Path) -> None:
    """Here without the Mac: the recorded calls are the package's, and the script's own measure holds them equal."""
    device = bundle / "device"
    assert sorted(p.name for p in device.iterdir()) == [
        "Decode.swift", "golden", "model.mlpackage", "position_ids_cos.f16", "position_ids_sin.f16", "verify_on_mac.py"]
    interpreter = Interpreter.open(device / "model.mlpackage")
    for name in ("prefill", "decode"):
        inputs, expected = verify_on_mac.golden(device / "golden" / f"{name}.npz")
        assert {a.dtype for a in inputs.values()} == {np.dtype(np.int32), np.dtype(np.float16)}
        made = interpreter.run(name, inputs)
        assert set(verify_on_mac.compare(expected, made).values()) == {math.inf}
        made[LOGITS][0, 0, :40] = 0
        found = verify_on_mac.compare(expected, {k: v for k, v in made.items() if k != "past_key_0_out"})
        assert found[LOGITS] < 35
        assert found["past_key_0_out"] == -math.inf
    done = subprocess.run([sys.executable, device / "verify_on_mac.py"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: Core ML runs on macOS only; copy this folder to a Mac\n")


def test_what_the_script_calls_is_there() -> None:
    """As far as Linux has it: the arguments that coremltools names."""
    import inspect

    import coremltools as ct
    from coremltools.models.compute_plan import MLComputePlan

    assert {"function_name", "compute_units"} <= set(inspect.signature(ct.models.MLModel).parameters)
    assert {"path", "compute_units"} <= set(inspect.signature(MLComputePlan.load_from_path).parameters)
    assert callable(MLComputePlan.get_compute_device_usage_for_mlprogram_operation)
    assert callable(ct.models.MLModel.get_compiled_model_path)
    assert {"ALL", "CPU_AND_NE", "CPU_AND_GPU", "CPU_ONLY"} == {u.name for u in ct.ComputeUnit}


def test_inspect_finds_nothing_wrong(bundle: Path) -> None:
    facts = describe.describe(bundle)
    assert facts["problems"] == []
    assert [(b["backend"], b["file"]) for b in facts["binaries"]] == [("coreml", "device/model.mlpackage")]


def test_a_second_build_repeats_nothing_and_another_chip_emits_alone(root: Path, bundle: Path) -> None:
    for name, chip, cached, done in (("phone", "apple-a18", 8, 0), ("mac", "apple-m4", 6, 2)):
        events: list[Event] = []
        made = pipeline.build(recipe.load(_recipe(root, name, target={"chip": chip, "context": 96, "prefill": 32})),
                              events.append)
        kinds = Counter(e.kind for e in events)
        assert (kinds["cached"], kinds["done"]) == (cached, done), name
    weights = Path("device") / "model.mlpackage" / package.WEIGHTS
    assert (made / weights).read_bytes() == (bundle / weights).read_bytes(), "one package serves every chip"


def test_a_package_that_computes_something_else_stops_the_build(root: Path, bundle: Path, tmp_path: Path) -> None:
    """The gate reads the finished file: a damaged one does not pass."""
    cache, stamps = root / "out" / ".edgeforge", Manifest.load(bundle).stamps
    quantized, adapted = (cache / stage / stamps[f"stage.{stage}"] for stage in ("quantize", "adapt"))
    shutil.copytree(bundle / "device" / "model.mlpackage", tmp_path / "model.mlpackage")
    weights = tmp_path / "model.mlpackage" / package.WEIGHTS
    raw = np.fromfile(weights, np.uint8)
    raw[200:5000] = 0  # in the first weight: the embedding's rows
    raw.tofile(weights)
    ids = np.load(adapted / "reference" / "ids.npy")[0]
    (compiled,) = (p.parent for p in (cache / "compile").glob(f"*/{chain.FILE}") if
                   (p.parent / "golden").is_dir() and p.parent.name == Manifest.load(bundle).stamps["stage.compile"])
    shutil.copyfile(compiled / chain.FILE, tmp_path / chain.FILE)
    checks = parity.checks(quantized, Table.load(quantized / FILE), tmp_path, 32, 96, ids, 1, tmp_path / "golden")
    assert len(checks) == 4
    assert min(c.value for c in checks) < 40
    limits = recipe.load(_recipe(root, "phone")).limits
    assert any(not c.passed for c in gates.judged(checks, limits))
    assert GateError.exit_code == 3


@pytest.mark.parametrize(("name", "said"), [
    ("model.mlpackage/Manifest.json", "is missing or damaged"), ("position_ids_cos.f16", "is missing or damaged"),
    ("Decode.swift", "is missing or damaged"), ("golden/decode.npz", "is missing or damaged")])
def test_what_an_app_would_stumble_over_is_no_answer_here(bundle: Path, name: str, said: str, tmp_path: Path,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    """One byte of what the interpreter itself does not read: the simulator, doctor and the lock all see it."""
    broken = tmp_path / "broken"
    shutil.copytree(bundle, broken)
    file = broken / "device" / name
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    for words in (["run", str(broken), "hi", "--on", "coreml-sim", "--raw"], ["doctor", str(broken)],
                  ["lock", "check", str(broken)]):
        assert _guarded(lambda words=words: app(words, standalone_mode=False)) == 1, words  # type: ignore[misc]
        shown = capsys.readouterr()
        assert name in (shown.out + shown.err).replace("\n", ""), words
        if words[0] == "run":
            assert said in shown.err


def test_an_emitter_that_hangs_leaves_its_job(root: Path, bundle: Path) -> None:
    """Where the README says, with the log and what reruns it alone; other vendors' compilers do the same."""
    made = recipe.load(_recipe(root, "hung", compile={"timeout_s": 0.05}, target={
        "chip": "apple-a19", "context": 96, "prefill": 32}))
    with pytest.raises(ChildFailed, match="the Core ML emitter did not finish") as caught:
        pipeline.build(made, lambda event: None)
    (folder,) = (root / "out" / ".edgeforge" / "failed").glob("*/model.mlpackage")
    assert {p.name for p in folder.iterdir()} >= {child.JOB, "work.log", "failure.json"}
    assert str(folder / child.JOB) in caught.value.hint


def _said(root: Path, **more: Any) -> list[tuple[str, str, str]]:
    made = recipe.load(_recipe(root, "asked", **more))
    return [(f.severity, f.what, f.change) for f in check.examine(made).findings]


@pytest.mark.parametrize(("more", "severity", "what", "change"), [
    ({"quantize": {"weights": 4, "block": 32}}, "recipe", "blocks of 32, and apple-a18 takes one step a channel: Core "
     "ML runs products of blocks on the CPU, not on the Neural Engine",
     "leave quantize.block out, or take quantize.palette 16 for it: 4 bits that name an entry of a table"),
    ({"quantize": {"weights": 4, "palette": 32}}, "recipe", "tables that 32 outputs share, and a head of this model "
     "has 16", "set quantize.palette to 16"),
    ({"quantize": {"activations": 8}, "target": {"chip": "apple-m4-gpu", "context": 96, "prefill": 32}}, "recipe",
     "8 bits, and apple-m4-gpu computes on float16: int8 times int8 is the Neural Engine's",
     "set quantize.activations to 16, or leave -gpu out of target.chip: the Neural Engine of the same chip takes 8"),
    ({"quantize": {"activations": 8}, "target": {"chip": "apple-a16", "context": 96, "prefill": 32}}, "warning",
     "apple-a16 multiplies int8 by int8 no faster than float16", "set quantize.activations to 16"),
    ({"quantize": {"weights": 16, "embedding": 8}}, "warning", "the head of this model reads the same table in",
     "leave quantize.embedding out, or set quantize.head to 8"),
    ({"target": {"chip": "apple-a18", "context": 100, "prefill": 32}}, "warning", "100 tokens are no multiple of 32",
     "set target.context to 128"),
    ({"target": {"chip": "apple-a18", "context": 96, "prefill": 20}}, "warning", "20 tokens are no multiple of 32",
     "set target.prefill to 32"),
])
def test_what_the_neural_engine_does_not_take_is_said_before(root: Path, more: dict[str, Any], severity: str, what: str,
                                                             change: str) -> None:
    found = [(s, w, c) for s, w, c in _said(root, **more) if what in w]
    assert [(s, c) for s, _, c in found] == [(severity, change)]


def test_a_table_that_the_head_does_not_share_is_no_trap(root: Path) -> None:
    assert _said(root, quantize={"weights": 8, "embedding": 8}) == []


def test_without_coremltools_nothing_begins(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "coremltools" else real(name, *a))
    assert ("error", "coremltools is not installed", "pip install coremltools==9.0") in _said(root)


def test_every_chip_can_be_built_for_here_and_none_is_run() -> None:
    mine = backend("coreml")
    assert [t.version for t in mine.tools()] == ["9.0", "1.0.0b3"]
    for chip in targets.APPLES.values():
        able = mine.abilities(chip)
        assert (able.compile, able.emulate) == ("", "")
        assert "Apple's devices only" in able.run
        assert ("GPU" if chip.name.endswith("-gpu") else "iOS 18") in mine.card(chip).line
    assert mine.proof(targets.chip("apple-m4")).problem == ""
