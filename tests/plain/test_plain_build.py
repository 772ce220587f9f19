"""A CNN and an encoder all the way, as a user builds them: every gate on, the compiled graph on the emulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import plain_models as models
import pytest
from builds import cli
from edgeforge_runtime.errors import ManifestError
from edgeforge_runtime.manifest import Manifest
from edgeforge_runtime.plain import PlainManifest, PlainSession

from edgeforge import doctor, pipeline, recipe
from edgeforge.describe import describe
from edgeforge.errors import EdgeForgeError
from edgeforge.metrics import sqnr_db
from edgeforge.pipeline import Event
from edgeforge.stages.plan import GRAPH_STAGES
from edgeforge.vectors import check
from edgeforge.vectors import format as sets


def bundle(path: Path) -> Path:
    return path.parent / "out" / "bundle"


def test_a_cnn_is_built_from_the_command_line(built_cnn: Path) -> None:
    folder = bundle(built_cnn)
    report = json.loads((folder / "report.json").read_text())
    assert [s["name"] for s in report["stages"]] == [s.name for s in GRAPH_STAGES[:-1]]
    assert report["context"] is None
    checks = {c["name"]: c for s in report["stages"] for c in s["checks"]}
    assert float(checks["optimize: logits"]["value"]) > 100
    assert checks["quantize: logits"]["value"] > 35
    assert checks["compile: small_cnn off the accelerator"]["value"] == 0
    assert checks["compile: logits, emulator against CPU"]["value"] > 60
    assert "context" not in (folder / "report.html").read_text()
    assert not list(folder.rglob("genie*")), "Genie is for language models"


def test_the_manifest_says_what_the_graph_takes_and_gives(built_cnn: Path) -> None:
    manifest = PlainManifest.load(bundle(built_cnn))
    assert (manifest.name, set(manifest.targets)) == ("small cnn", {"cpu", "htp"})
    part = manifest.part("htp")
    assert (part.graph, part.file) == ("small_cnn", "device/small_cnn.onnx")
    image, logits = part.inputs[0], part.outputs[0]
    assert (image.name, image.dtype, image.shape) == ("image", "uint16", (1, 3, 32, 32))
    assert (logits.name, logits.dtype, logits.shape) == ("logits", "uint16", (1, 10))
    assert image.scale is not None
    assert image.scale > 0


def test_inspect_describes_the_bundle_and_its_stages(built_cnn: Path) -> None:
    facts = describe(bundle(built_cnn))
    assert (facts["kind"], facts["model"], facts["problems"]) == ("bundle", {"name": "small cnn"}, [])
    (graph,) = facts["targets"]["htp"]["graphs"]
    assert graph["files"] == "device/small_cnn.onnx"
    assert [(t["name"], t["dtype"], t["shape"]) for t in graph["inputs"]] == [("image", "uint16", [1, 3, 32, 32])]
    assert [b["file"] for b in facts["binaries"]] == ["device/small_cnn.bin"]
    assert facts["gates"]["passed"] == facts["gates"]["of"] > 3
    cache = bundle(built_cnn).parent / ".edgeforge"
    for stage in GRAPH_STAGES[:-1]:
        for place in (cache / stage.name).iterdir():
            assert describe(place)["kind"] == f"stage {stage.name}"
    done = cli("inspect", bundle(built_cnn))
    assert done.returncode == 0, done.stderr
    assert "small_cnn" in done.stdout
    with pytest.raises(EdgeForgeError, match="every file is whole"):
        doctor.explain(str(bundle(built_cnn)))


def test_its_vectors_become_a_set_that_both_targets_replay(built_cnn: Path, tmp_path: Path) -> None:
    done = cli("vectors", "make", bundle(built_cnn), tmp_path / "set")
    assert done.returncode == 0, done.stderr
    (graph,) = sets.load(tmp_path / "set").graphs
    assert (graph.graph, [c.label for c in graph.calls]) == ("small_cnn", ["sample_0", "sample_1", "sample_2"])
    replayed = {on: check.replay(tmp_path / "set", bundle(built_cnn), on) for on in ("cpu", "htp")}
    assert [v.lsb for v in replayed["cpu"]] == [0, 0, 0]
    assert [v.passed for v in replayed["htp"]] == [True, True, True]


@pytest.mark.parametrize(("change", "words"), [
    ({"targets": []}, "where the targets should"), ({"targets": {"cpu": {"executor": "onnx-cpu", "graphs": []}}},
                                                    "target cpu holds not one graph"),
    ({"name": 3}, "name is 3, not str"), ({"extra": 1}, "has no key 'extra'"), ({"format": "edgeforge-graph/2"},
                                                                               "this runtime reads"),
])
def test_a_damaged_manifest_is_named(built_cnn: Path, tmp_path: Path, change: dict[str, Any], words: str) -> None:
    raw = json.loads((bundle(built_cnn) / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(raw | change))
    with pytest.raises(EdgeForgeError, match=words):
        describe(tmp_path)


def test_the_bundle_answers_on_cpu_and_emulator_as_torch_does(built_cnn: Path) -> None:
    samples = models.images(20)["image"][16:]  # neither calibrated nor gated on
    import torch

    with torch.no_grad():
        expected = np.stack([models.cnn()(torch.from_numpy(s)).numpy() for s in samples])
    made = {}
    for on in ("cpu", "htp"):
        with PlainSession.open(bundle(built_cnn), on, threads=1) as session:
            made[on] = np.stack([session.run({"image": s})["logits"] for s in samples])
    assert sqnr_db(expected, made["cpu"]) > 35
    assert sqnr_db(made["cpu"], made["htp"]) > 60


def test_there_is_no_decode_loop_in_it(built_cnn: Path) -> None:
    done = cli("run", bundle(built_cnn), "hello")
    assert done.returncode == 1
    assert "plain graph" in done.stderr
    assert "Traceback" not in done.stderr
    with pytest.raises(ManifestError, match="no decode loop"):
        Manifest.load(bundle(built_cnn))


def test_a_second_build_does_nothing_and_new_samples_do_all(built_cnn: Path) -> None:
    events: list[Event] = []
    pipeline.build(recipe.load(built_cnn), events.append)
    assert {e.kind for e in events} == {"cached"}
    fewer = models.recipe(built_cnn.parent, built_cnn.parent / "small cnn.onnx", models.images(8), name="fewer")
    assert cli("lock", "check", bundle(built_cnn)).returncode == 0
    events.clear()
    pipeline.build(recipe.load(fewer), events.append)
    assert [e.stage for e in events if e.kind == "done"] == [s.name for s in GRAPH_STAGES]


def test_the_lock_sees_that_samples_changed(built_cnn: Path, tmp_path: Path) -> None:
    path = built_cnn.parent / "bundle.npz"
    before = path.read_bytes()
    try:
        np.savez(path, **models.images(4))  # type: ignore[arg-type]
        done = cli("lock", "check", bundle(built_cnn))
        assert "samples" in done.stdout + done.stderr
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize(("bits", "quantized", "emulated"), [(4, 15, 40), (16, 45, 40)])
def test_other_weights_compile_too(built_cnn: Path, bits: int, quantized: float, emulated: float) -> None:
    more = f"quantize: {{weights: {bits}}}\ngates: {{quantize_db: {quantized}}}"
    path = models.recipe(built_cnn.parent, built_cnn.parent / "small cnn.onnx", models.images(), more, f"w{bits}")
    events: list[Event] = []
    pipeline.build(recipe.load(path), events.append)
    numbers = {c.name: c.value for e in events for c in e.checks}
    assert numbers["compile: logits, emulator against CPU"] > emulated


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_an_encoder_is_built(attention: str, tmp_path: Path) -> None:
    """Ids and mask in, two outputs; LayerNormalization, GELU, attention and Tanh on the accelerator."""
    samples = models.sentences()
    opset = 17 if attention == "eager" else 23
    onnx = models.export(models.encoder(attention), samples, tmp_path / "encoder.onnx", opset)
    events: list[Event] = []
    out = pipeline.build(recipe.load(models.recipe(tmp_path, onnx, samples)), events.append)
    numbers = {c.name: c.value for e in events for c in e.checks}
    for name in ("hidden", "pooled"):
        assert numbers[f"optimize: {name}"] > 90
        assert numbers[f"quantize: {name}"] > 35
        assert numbers[f"compile: {name}, emulator against CPU"] > 50
    assert [t.dtype for t in PlainManifest.load(out).part("htp").inputs] == ["int32", "int32"]


