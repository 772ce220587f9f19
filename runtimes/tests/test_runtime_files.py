"""A bundle whose copy is not whole: the file is named, with both sizes, before any library reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from edgeforge_runtime import files
from edgeforge_runtime.errors import ManifestError
from edgeforge_runtime.manifest import Graph, Part, Target
from edgeforge_runtime.session import Session
from tiny_models import Tiny


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = Tiny(quantized=True).write(tmp_path)
    (folder / "model_0.data").write_bytes(bytes(500))
    (folder / "device").mkdir()
    (folder / "device" / "part.bin").write_bytes(bytes(100))
    found = {str(p.relative_to(folder)): {"bytes": p.stat().st_size} for p in folder.rglob("*") if p.is_file()}
    (folder / "stage.json").write_text(json.dumps({"files": found}))
    return folder


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


@pytest.mark.parametrize("name", ["model_0.data", "model_0.onnx"])
def test_a_short_file_is_named_with_both_sizes(bundle: Path, name: str) -> None:
    whole = (bundle / name).stat().st_size
    cut(bundle / name, 50)
    with pytest.raises(ManifestError, match=rf"{name} is truncated: 50 bytes, {whole:,} were built; copy the bundle"):
        Session.open(bundle)


def test_a_missing_and_a_foreign_file(bundle: Path) -> None:
    path = bundle / "model_0.data"
    path.write_bytes(bytes(600))
    with pytest.raises(ManifestError, match=r"model_0\.data is not the file that was built: 600 bytes, 500 were built"):
        Session.open(bundle)
    path.unlink()
    with pytest.raises(ManifestError, match=r"model_0\.data is missing \(500 bytes\): copy the bundle again"):
        Session.open(bundle)


def test_what_the_target_does_not_load_may_be_left_out(bundle: Path) -> None:
    """Only the CPU's files were copied."""
    (bundle / "device" / "part.bin").unlink()
    Session.open(bundle).close()


def test_parts_in_folders_bring_their_neighbours(tmp_path: Path) -> None:
    target = Target("qnn-htp", (Graph(1, 8, (Part("x86/a.onnx", "a", (), ()),)),))
    (tmp_path / "x86").mkdir()
    (tmp_path / "x86" / "a.onnx").write_bytes(bytes(3))
    sizes = {"x86/a.onnx": 3, "x86/a.bin": 7, "model.data": 9}
    (tmp_path / "stage.json").write_text(json.dumps({"files": {k: {"bytes": v} for k, v in sizes.items()}}))
    with pytest.raises(ManifestError, match=r"a\.bin is missing \(7 bytes\)"):
        files.check(target, tmp_path)


def test_a_package_is_all_that_lies_in_it(tmp_path: Path) -> None:
    inside = "device/a.mlpackage/Data/com.apple.CoreML"
    target = Target("coreml", (Graph(1, 8, (Part(f"{inside}/model.mlmodel", "decode", (), ()),)),))
    sizes = {f"{inside}/model.mlmodel": 3, f"{inside}/weights/weight.bin": 7, "device/a.mlpackage/Manifest.json": 2,
             "device/verify_on_mac.py": 5}
    for name, size in list(sizes.items())[:2]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    (tmp_path / "stage.json").write_text(json.dumps({"files": {k: {"bytes": v} for k, v in sizes.items()}}))
    with pytest.raises(ManifestError, match=r"Manifest\.json is missing \(2 bytes\)"):
        files.check(target, tmp_path)
    (tmp_path / "device/a.mlpackage/Manifest.json").write_bytes(bytes(2))
    files.check(target, tmp_path)
    cut(tmp_path / inside / "weights" / "weight.bin", 4)
    with pytest.raises(ManifestError, match=r"weight\.bin is truncated: 4 bytes, 7 were built"):
        files.check(target, tmp_path)


@pytest.mark.parametrize("stamp", ["{", "[]", '{"files": 3}', '{"files": {"model_0.onnx": 3}}', None])
def test_without_a_readable_stamp_there_is_nothing_to_compare_with(bundle: Path, stamp: str | None) -> None:
    (bundle / "stage.json").unlink()
    if stamp is not None:
        (bundle / "stage.json").write_text(stamp)
    cut(bundle / "model_0.data", 5)
    Session.open(bundle).close()
