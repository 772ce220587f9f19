"""The second judge: Apple's Core AI executes the decoder's graph here, and says what the package says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import coreml_tiny
import numpy as np
import onnx_ir as ir
import pytest
import tiny
import tiny_checkpoint
import torch
import yaml
from coreml_tiny import PROMPT, STEPS, WIDTHS, Emitted
from edgeforge_runtime import manifest as m
from edgeforge_runtime.session import Session

from edgeforge import describe, pipeline, recipe
from edgeforge.backends.coreml import decoder, parity, target
from edgeforge.backends.coreml.coreai import account, asset, judge
from edgeforge.backends.coreml.coreai.judge import Judge
from edgeforge.backends.coreml.coreai.module import GraphModule
from edgeforge.cli import _guarded, app
from edgeforge.encodings import Table
from edgeforge.errors import EdgeForgeError
from edgeforge.gates import Check
from edgeforge.graph import edit
from edgeforge.metrics import sqnr_db
from edgeforge.quantize.weights.palette import Palette
from edgeforge.sections import Gates

SAME = 90
"""dB between two float32 computations that share no code; 92 to 131 came out"""


def write(folder: Path, model: ir.Model, table: Table, palettes: dict[str, Palette]) -> Path:
    """The asset of a tiny model, in float32."""
    model, path = model.clone(), folder / "tiny.aimodel"
    formats = decoder.prepare(model, table, palettes)
    graphs = decoder.bound(model, WIDTHS, tiny.CONTEXT)
    asset.write({name: asset.Entry(GraphModule(graph, formats, torch.float32), [str(v.name) for v in graph.inputs],
                                   [str(v.name) for v in graph.outputs]) for name, graph in graphs.items()}, path)
    return path


def conversation(emitted: Emitted, path: Path) -> np.ndarray:
    """What coreml_tiny.conversation asks of the package, asked of the asset."""
    manifest = m.Manifest.load(emitted.reference)
    own = target.target(emitted.made.decoder, WIDTHS, tiny.CONTEXT, "", "float32")
    session = Session(manifest, own, asset.CoreAiExecutor(path, "float32"), emitted.made.tables)
    return parity.conversation(session, [int(t) for t in tiny.ids(PROMPT + STEPS)], PROMPT)


def _agrees(folder: Path, family: str, bits: int, tables: bool) -> tuple[Emitted, Path]:
    made, model = coreml_tiny.graph(family)
    rows = coreml_tiny.rows(model)
    assert len(rows) == 1
    table = Table({**({} if tables else coreml_tiny.table(model, bits)), **rows})
    palettes = coreml_tiny.palettes(model, bits, 4) if tables else {}
    emitted = coreml_tiny.emit(folder, made, model, table, palettes)
    path = write(folder, model, table, palettes)
    ours, theirs = coreml_tiny.conversation(coreml_tiny.simulated(emitted, "float32")), conversation(emitted, path)
    assert sqnr_db(ours[0], theirs[0]) > SAME
    assert sqnr_db(ours[1:], theirs[1:]) > SAME
    return emitted, path


def test_core_ai_computes_what_the_package_says(tmp_path: Path) -> None:
    """Emitter and interpreter on one side, torch.export and Apple's runtime on the other: one step a channel."""
    emitted, path = _agrees(tmp_path, "qwen3", 4, tables=False)
    with pytest.raises(EdgeForgeError, match="is there already"):
        asset.write({}, path)
    with pytest.raises(EdgeForgeError, match=r"ends in \.aimodel"):
        asset.write({}, tmp_path / "tiny.mlpackage")
    assert emitted.package.is_dir()
    _says_what_it_holds(emitted, path)


def _says_what_it_holds(emitted: Emitted, path: Path) -> None:
    """`inspect`: the package's own interface, in float32; an asset that is not what was written is refused unopened."""
    facts, theirs = describe.describe(path), describe.describe(emitted.package)
    assert (facts["kind"], facts["read_by"]) == ("Core AI asset", "iOS 27, macOS 27 or later")
    assert [f["name"] for f in facts["functions"]] == [f["name"] for f in theirs["functions"]] == ["decode", "prefill"]
    for ours, other in zip(facts["functions"], theirs["functions"], strict=True):
        assert {i["name"]: i["shape"] for i in ours["inputs"]} == {i["name"]: i["shape"] for i in other["inputs"]}
        assert {i["type"] for i in ours["inputs"]} == {"int32", "float32"}
        assert sorted(o["name"] for o in ours["outputs"]) == sorted(other["outputs"])
    weights = (edit.constant(emitted.model.graph.initializers[n]) for n, e in emitted.table.items() if e.bits == 4)
    codes = sum(w.size for w in weights if w is not None)
    assert codes <= facts["stored_elements"]["int4"] < 1.1 * codes, "once for both functions"
    program = path / account.PROGRAM
    raw = bytearray(program.read_bytes())
    raw[len(raw) // 2] ^= 1
    program.write_bytes(raw)
    with pytest.raises(EdgeForgeError, match=r"is damaged: main\.mlirb is not what main\.hash was written for"):
        describe.describe(path)
    program.unlink()
    with pytest.raises(EdgeForgeError, match="is not a whole Core AI asset: .*main.mlirb: No such file"):
        describe.describe(path)


@pytest.mark.nightly
@pytest.mark.parametrize(("family", "bits", "tables"), [
    ("llama", 8, False), ("gemma2", 4, True), ("qwen3", 6, True), ("phi3", 4, False)])
def test_core_ai_agrees_on_every_format(family: str, bits: int, tables: bool, tmp_path: Path) -> None:
    _agrees(tmp_path, family, bits, tables)


@pytest.mark.nightly
def test_a_wrong_step_is_heard(tmp_path: Path) -> None:
    """The judge can say no: other steps in one weight's asset are far from the package."""
    made, model = coreml_tiny.graph("llama")
    table = coreml_tiny.table(model, 8)
    emitted = coreml_tiny.emit(tmp_path, made, model, table)
    name = next(n for n in table if n.endswith("down_proj.weight"))
    path = write(tmp_path, model, Table({**table, name: coreml_tiny.doubled(table[name])}), {})
    ours = coreml_tiny.conversation(coreml_tiny.simulated(emitted, "float32"))
    assert sqnr_db(ours, conversation(emitted, path)) < 40


def _recipe(root: Path, **apple: Any) -> Path:
    raw = {"model": "tiny", "out": "out/asset", "calibrate": {"windows": 4, "tokens": 96, "samples": 0},
           "target": {"chip": "apple-a18", "context": 96, "prefill": 32}, "quantize": {"weights": 8},
           "apple": {"system": "ios27", "format": "aimodel"} | apple}
    path = root / "asset.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


@pytest.mark.nightly
def test_an_asset_as_the_bundle_s_device_file(tmp_path: Path) -> None:
    """Beside the package: two gates of its own, and a target."""
    tiny_checkpoint.make(tmp_path / "tiny", tie_word_embeddings=True)
    bundle = pipeline.build(recipe.load(_recipe(tmp_path, format="both")), lambda event: None)
    manifest = m.Manifest.load(bundle)
    assert set(manifest.targets) == {"cpu", "ane", "coreml-sim", "coreai"}
    file = bundle / manifest.targets["coreai"].graphs[0].parts[0].file
    facts = describe.describe(bundle)
    assert [(b["file"], b["read by"]) for b in facts["binaries"]] == [
        ("device/model.aimodel", "iOS 27, macOS 27 or later"), ("device/model.mlpackage", "iOS 26, macOS 26 or later")]
    assert facts["problems"] == [], "a package and an asset of one bundle need not agree"
    cache = tmp_path / "out" / ".edgeforge"
    (quantized,), (adapted,) = ([p for p in (cache / s).iterdir() if p.is_dir()] for s in ("quantize", "adapt"))
    again = Judge(quantized, adapted / "reference" / "ids.npy", 32, 96, 1, {"float16": "again.aimodel"})
    found = judge.ask(again, tmp_path, tmp_path / "failed", 300)
    assert [c.name for c in found] == [f"compile: {f} by Core AI in float16 against the float graph"
                                       for f in ("prefill", "decode")]
    assert all(isinstance(c, Check) and c.gate == "rounded_db" and c.value > Gates().rounded_db for c in found)
    assert abs((tmp_path / "again.aimodel" / file.name).stat().st_size - file.stat().st_size) < 1000
    assert _guarded(lambda: app(["run", str(bundle), "hi", "--on", "coreai", "--max-tokens", "2", "--raw"],
                                standalone_mode=False)) == 0
    file.write_bytes(file.read_bytes()[:3000])  # which Core AI answers by ending the process
    assert _guarded(lambda: app(["run", str(bundle), "hi", "--on", "coreai", "--raw"], standalone_mode=False)) == 1
