"""Execution in a process of its own, with limits; and what a package, a manifest and a recipe say of it."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import coreml_tiny
import numpy as np
import pytest
import yaml
from coreml_tiny import Emitted
from edgeforge_runtime.manifest import LOGITS, Manifest

from edgeforge import describe, recipe
from edgeforge.backends import backend, failed
from edgeforge.backends.coreml import child, decoder, judge, mil, package, target
from edgeforge.backends.ending import ChildFailed
from edgeforge.errors import EdgeForgeError, RecipeError


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Emitted:
    return coreml_tiny.emit(tmp_path_factory.mktemp("llama"), *coreml_tiny.graph("llama"))


def test_a_judge_that_is_stopped_leaves_its_job(llama: Emitted, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.zeros((1, 64), np.int64))
    case = judge.Case(llama.reference, llama.package, 8, 48, tmp_path / "ids.npy", 1, tmp_path / "golden", True)
    assert judge.Case.parse(json.loads(json.dumps(case.dump()))) == case
    with pytest.raises(ChildFailed, match="^its execution needed more than its limit of 8 MiB") as caught:
        child.call("its execution", case.dump(), tmp_path / "work", tmp_path / "failed" / "judge", 60, 8 << 20)
    assert f"python -m {child.MODULE} {tmp_path / 'failed' / 'judge' / child.JOB}" in caught.value.hint
    assert failed.recorded(tmp_path / "failed" / "judge")[0] == caught.value.ending
    assert not (tmp_path / "work").exists()


def test_what_a_judge_finds_wrong_comes_back_as_it_is(llama: Emitted, tmp_path: Path) -> None:
    case = judge.Case(tmp_path, tmp_path / "none.mlpackage", 8, 48, tmp_path / "ids.npy", 1, tmp_path / "golden", True)
    with pytest.raises(EdgeForgeError, match=r"table\.json is not an encoding table"):
        child.call("its execution", case.dump(), tmp_path / "work", tmp_path / "failed", 60)


def test_the_proof_is_a_child_too() -> None:
    from edgeforge import targets

    assert backend("coreml").proof(targets.chip("apple-m4-gpu")).problem == ""


@pytest.mark.parametrize(("vocab", "most", "sizes"), [
    (49152, 16384, (16384,) * 3), (160, 16384, (160,)), (160, 100, (100, 60)), (262144, 16384, (16384,) * 16),
    (151936, 16384, (15232,) * 9 + (14848,)),
])
def test_a_head_s_pieces_are_the_emitter_s(vocab: int, most: int, sizes: tuple[int, ...]) -> None:
    assert target.pieces(vocab, most) == sizes
    assert sum(sizes) == vocab


def test_the_manifest_tells_the_pieces(llama: Emitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the package has them; a target without pieces is written as it always was."""
    for module in (target, decoder):
        monkeypatch.setattr(module, "MOST_OUTPUTS", 100)
    cut = coreml_tiny.emit(tmp_path / "cut", *coreml_tiny.graph("llama"))
    made = target.target(llama.made.decoder, coreml_tiny.WIDTHS, 48, "m.mlpackage")
    whole = Manifest.load(llama.reference)
    dataclasses.replace(whole, targets={"ane": made}).save(tmp_path)
    read = Manifest.load(tmp_path).targets["ane"].graphs[0].boundary()[1][LOGITS]
    shapes = {o.name: o.shape[-1] for op in coreml_tiny.program(cut)["decode"].ops for o in op.outputs if o.shape}
    assert read.pieces == tuple(shapes[f"{LOGITS}_{i}"] for i in range(len(read.pieces))) == (100, 60)
    assert "pieces" not in (llama.reference / "manifest.json").read_text(encoding="utf-8")


def test_a_package_says_which_systems_read_it(llama: Emitted, tmp_path: Path) -> None:
    """By its specification; packages of one bundle that differ there are told."""
    for name, version in (("a", 9), ("b", 10)):
        shutil.copytree(llama.package, tmp_path / "device" / f"{name}.mlpackage")
        spec = mil.proto.Model_pb2.Model.FromString((llama.package / package.MODEL).read_bytes())
        spec.specificationVersion = version
        (tmp_path / "device" / f"{name}.mlpackage" / package.MODEL).write_bytes(spec.SerializeToString())
    found = [describe.describe(tmp_path / "device" / f"{n}.mlpackage")["read_by"] for n in "ab"]
    assert found == ["iOS 18, macOS 15 or later", "iOS 26, macOS 26 or later"]
    (tmp_path / "manifest.json").write_bytes((llama.reference / "manifest.json").read_bytes())
    said = [p for p in describe.describe(tmp_path)["problems"] if "read by" in p]
    assert len(said) == 1
    assert "iOS 26" in said[0]


@pytest.mark.parametrize(("chip", "gates", "said"), [
    ("geforce-rtx-4090", {"rounded_db": 30}, "only for Apple's chips"),
    ("snapdragon-8-gen-3", {"rounded_db": 30}, "only for Apple's chips"), ("apple-a18", {"rounded_db": 30}, ""),
])
def test_only_apple_s_packages_are_executed_in_float16(chip: str, gates: dict[str, Any], said: str, tmp_path: Path,
                                                       ) -> None:
    (tmp_path / "m").mkdir()
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump({"model": "m", "out": "o", "target": {"chip": chip}, "gates": gates}))
    if not said:
        assert recipe.load(path).limits["rounded_db"] == 30
        return
    with pytest.raises(RecipeError, match=said):
        recipe.load(path)
