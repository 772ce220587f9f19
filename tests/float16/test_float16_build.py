"""Recipe to bundle for a GPU that is not here: what the bundle holds, what it says, and what a second build repeats."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tiny_checkpoint
import yaml
from builds import cli
from edgeforge_runtime.manifest import WRITE, Manifest

from edgeforge import lock, pipeline, recipe, targets
from edgeforge.pipeline import Event
from edgeforge.vectors import make

pytestmark = pytest.mark.skipif(importlib.util.find_spec("tensorrt_rtx") is None, reason="tensorrt_rtx is an extra")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu build")
    tiny_checkpoint.make(folder / "tied", tie_word_embeddings=True)
    return folder


def _recipe(root: Path, name: str, chip: str, **more: object) -> Path:
    raw = {"model": "tied", "out": f"out/{name}", "target": {"chip": chip, "context": 128, "prefill": 32},
           "calibrate": {"windows": 4, "tokens": 128, "samples": 0},
           "quantize": {"weights": 4, "block": 64}, **more}
    path = root / f"{name}.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


def _built(path: Path) -> tuple[Path, Counter[str]]:
    events: list[Event] = []
    bundle = pipeline.build(recipe.load(path), events.append)
    return bundle, Counter(e.kind for e in events)


@pytest.fixture(scope="module")
def bundle(root: Path) -> Path:
    return _built(_recipe(root, "ada", "geforce-rtx-4090"))[0]


def test_the_bundle_runs_on_the_cpu_and_holds_the_engine(bundle: Path) -> None:
    manifest = Manifest.load(bundle)
    assert set(manifest.targets) == {"cpu", "trt"}
    assert (bundle / "device" / "model.engine").stat().st_size > 1 << 20
    assert {p.name for p in (bundle / "device" / "onnx").iterdir()} == {"model.onnx", "model.data", "build_engine.sh"}
    assert {p.name for p in (bundle / "vectors").iterdir()} == {"whole"}
    for graph in manifest.targets["trt"].graphs:
        assert WRITE in graph.boundary()[0]
    done = cli("run", bundle, "Hello", "--max-tokens", 4)
    assert done.returncode == 0, done.stderr
    assert "tokens read" in done.stderr


def test_the_report_says_built_not_run(bundle: Path) -> None:
    raw = json.loads((bundle / "report.json").read_text(encoding="utf-8"))
    assert "was not run: no GPU was used" in raw["not_seen"][0]
    assert [s["name"] for s in raw["stages"]] == [
        "adapt", "optimize", "text", "transform", "quantize", "export", "compile"]
    assert "tensorrt-rtx-cu12" in raw["stages"][-1]["tools"]


@pytest.mark.parametrize(("name", "options", "word"), [
    ("half", {"weights": 16}, ""), ("w8a8", {"weights": 8, "activations": 8}, "int8"),
    ("fp8", {"weights": 8, "activations": 8, "eight_bits": "fp8"}, "fp8")])
def test_every_kind_of_number_from_recipe_to_engine(root: Path, name: str, options: dict[str, object],
                                                    word: str) -> None:
    """All gates on the way hold, weights of both profiles are one, codes stay codes, and its CPU model answers."""
    made, _ = _built(_recipe(root, name, "geforce-rtx-4090", quantize=options))
    raw = json.loads((made / "report.json").read_text(encoding="utf-8"))
    checks = {c["name"]: c for s in raw["stages"] for c in s["checks"]}
    assert checks["compile: weights of both profiles over the model's"]["value"] <= 1.02
    assert checks["compile: AR-1: attention kernels"]["value"] == 2
    for width in (32, 1):
        assert checks[f"compile: AR-{width}: weights unpacked before their product"]["value"] == 0
        stayed = [n for n in checks if n.startswith(f"compile: AR-{width}:") and n.endswith("weights that stayed so")]
        assert stayed == ([f"compile: AR-{width}: {word} weights that stayed so"] if word else [])
    threshold = checks["compile: decode of the emitted graph against the float graph"]["threshold"]
    assert threshold == (15 if word else 50)
    assert ("quantize: products of codes by codes" in checks) == bool(word)
    done = cli("run", made, "Hello", "--max-tokens", 4)
    assert done.returncode == 0, done.stderr
    with np.load(made / "vectors" / "whole" / "ar32" / "outputs.npz") as outputs:
        assert outputs["logits"].dtype == np.float32


def test_its_vectors_are_a_set_that_its_own_cpu_model_passes(bundle: Path, tmp_path: Path) -> None:
    make.make(bundle, tmp_path / "set")
    done = cli("vectors", "check", tmp_path / "set", bundle)
    assert done.returncode == 0, done.stderr


def test_a_build_that_fails_leaves_a_job_that_runs_alone(root: Path, bundle: Path) -> None:
    """Its graph too: the stage's own folder is gone."""
    done = cli("build", _recipe(root, "hasty", "geforce-rtx-4080", compile={"timeout_s": 0.2}))
    assert done.returncode == 1
    assert "did not finish within 0 s" in done.stderr
    (job,) = (root / "out" / ".edgeforge" / "failed").glob("*/engine/engine_job.json")
    alone = subprocess.run([sys.executable, "-m", "edgeforge.backends.tensorrt.worker", job], capture_output=True,
                           text=True, timeout=300, check=False)
    assert alone.returncode == 0, alone.stdout
    assert (job.parent / "model.engine").stat().st_size > 1 << 20


def test_the_lock_holds(bundle: Path) -> None:
    found = lock.check(bundle)
    assert (found.damaged, found.drift) == ((), ())


def test_a_second_build_and_another_gpu_repeat_nothing_but_what_names_it(root: Path, bundle: Path) -> None:
    assert _built(_recipe(root, "ada", "geforce-rtx-4090"))[1] == {"cached": 8}
    other, kinds = _built(_recipe(root, "ampere", "geforce-rtx-3090"))
    assert (kinds["cached"], kinds["done"]) == (6, 2)
    engines = [(b / "device" / "model.engine").read_bytes() for b in (bundle, other)]
    assert engines[0] != engines[1]


def test_a_jetson_gets_the_onnx_and_the_command(root: Path, bundle: Path) -> None:
    path = _recipe(root, "orin", "jetson-agx-orin")
    checked = cli("check", path)
    assert checked.returncode == 0
    assert "build_engine.sh" in checked.stdout
    made, _ = _built(path)
    engine = made / "device" / "model.engine"
    assert not engine.exists()
    assert (made / "device" / "onnx" / "build_engine.sh").read_text(encoding="utf-8").startswith("#!")
    engine.write_bytes(b"as the Jetson's own TensorRT writes it")
    assert lock.check(made).damaged == ()
    shown = cli("inspect", made)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "the GPU that built it" in shown.stdout
    (made / "device" / "other.engine").write_bytes(b"nobody's")
    assert lock.check(made).damaged == ("device/other.engine: not in the lock",)
    (made / "device" / "other.engine").unlink()
    _, kinds = _built(_recipe(root, "orin", "jetson-agx-orin", gates={"shared_bytes": 1.06}))
    assert kinds["done"] == 1, "the bundle is made anew, and the engine of the old one is no stranger"
    assert not engine.exists()



def test_a_gpu_without_int4_is_told_before_any_work(root: Path) -> None:
    done = cli("build", _recipe(root, "turing", "geforce-rtx-2080"))
    assert done.returncode == 2
    assert "turing.yaml:" in done.stderr
    assert "4-bit weights, which TensorRT does not build for geforce-rtx-2080 (7.5)" in done.stderr


def test_every_chip_is_listed_with_what_it_takes() -> None:
    done = cli("targets", "--json")
    rows = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert set(rows) == set(targets.CHIPS)
    assert rows["geforce-rtx-5090"]["compute"] == ["12.0"]
    assert rows["snapdragon-8-gen-3"]["soc_model"] == 57
    shown = cli("targets").stdout
    assert "jetson-agx-thor" in shown
    assert "compute capability 8.9" in shown
