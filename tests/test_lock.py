"""The lock names everything that a bundle was made from, and notices when something is not that."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from builds import cli, contents, variant
from tiny_build import Built

from edgeforge import lock, pipeline, recipe
from edgeforge.errors import EdgeForgeError, GateError


@pytest.fixture
def bundle(built: Built, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built.bundle, tmp_path / "bundle"))


def test_every_file_is_locked_and_sound(built: Built) -> None:
    found = lock.check(built.bundle)
    assert found.files > 50
    assert (found.damaged, found.drift) == ((), ())
    done = cli("lock", "check", built.bundle)
    assert done.returncode == 0
    assert f"{found.files} files as locked" in done.stdout


def test_what_a_compiler_made_and_what_holds_times_is_not_promised(built: Built) -> None:
    files = lock.load(built.bundle)["files"]
    loose = {name for name, seen in files.items() if not seen["reproducible"]}
    assert {"report.html", "report.json", "device/part_2_of_3.bin", "x86/part_2_of_3.bin"} <= loose
    firm = set(files) - loose
    assert {"model.onnx", "model.data", "manifest.json", "device/genie_config.json"} <= firm
    assert all(name in firm for name in files if name.startswith("vectors/"))


@pytest.mark.parametrize(("harm", "wanted"), [
    (lambda b: (b / "model.data").write_bytes((b / "model.data").read_bytes()[:-7]), "model.data: .* bytes, locked"),
    (lambda b: (b / "rope.npz").unlink(), "rope.npz: missing"),
    (lambda b: (b / "new.bin").write_bytes(b"1"), "new.bin: not in the lock"),
    (lambda b: (b / "manifest.json").write_bytes((b / "manifest.json").read_bytes()[::-1]), "manifest.json: other"),
])
def test_damage_is_named(bundle: Path, harm: Callable[[Path], object], wanted: str) -> None:
    harm(bundle)
    found = lock.check(bundle).damaged
    assert len(found) == 1
    assert re.search(wanted, found[0])
    done = cli("lock", "check", bundle, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["damaged"] == list(found)


def test_other_tools_here_are_reported_as_drift(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda n: "9.9" if n == "onnx" else real(n))
    assert lock.check(bundle).drift == (f"tools.onnx: {real('onnx')} locked, 9.9 here",)


@pytest.mark.parametrize("text", [
    "", "[]", "{}", '{"format": "edgeforge-lock-1"}', '{"format": "edgeforge-lock-9"}', "[" * 100_000,
    '{"format": "edgeforge-lock-1", "inputs": {"threads": "2"}, "files": {}, "stages": {}}',
])
def test_a_file_that_is_no_lock_is_an_error(bundle: Path, text: str) -> None:
    (bundle / lock.FILE).write_text(text)
    done = cli("lock", "check", bundle)
    assert done.returncode == 1
    assert lock.FILE in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_two_builds_from_one_lock_are_the_same_bytes(built: Built, checkpoint_folder: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(checkpoint_folder, tmp_path / "moved" / checkpoint_folder.name)
    path = variant(built, "again", model=str(moved), out=str(tmp_path / "elsewhere" / "tiny"))
    os.environ["PYTHONHASHSEED"] = "7"  # a set's order must not show in any file
    try:
        done = cli("build", path, "--lock", built.bundle / lock.FILE)
    finally:
        del os.environ["PYTHONHASHSEED"]
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "elsewhere" / "tiny") == contents(built.bundle)
    export = built.artifact("export")
    assert contents(tmp_path / "elsewhere" / ".edgeforge" / "export" / export.name) == contents(export)


def test_a_build_that_cannot_give_what_is_locked_does_not_start(built: Built, bundle: Path) -> None:
    path = variant(built, "other", quantize={"rounding": "nearest"}, gates={"quantize_db": 10})
    done = cli("build", path, "--lock", bundle)
    assert done.returncode == 1
    assert "recipe.quantize.rounding: None locked, nearest here" in done.stderr
    assert not (built.cache.parent / "other").exists()


def test_a_model_under_another_name_is_not_what_is_locked(
        built: Built, checkpoint_folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(checkpoint_folder, tmp_path / "my llama")
    done = cli("build", variant(built, "named", model=str(other)), "--lock", built.bundle)
    assert done.returncode == 1
    assert f"name: {checkpoint_folder.name} locked, my llama here" in done.stderr
    assert not (built.cache.parent / "named").exists()


def test_bytes_that_come_out_otherwise_fail_the_build(built: Built, bundle: Path) -> None:
    path = bundle / lock.FILE
    raw = json.loads(path.read_text())
    raw["files"]["model.onnx"]["sha256"] = "0" * 64
    path.write_text(json.dumps(raw))
    with pytest.raises(GateError, match=r"1 of \d+ files are not as locked:\n  model.onnx"):
        pipeline.build(recipe.load(built.recipe), lambda event: None, path)


def test_a_lock_that_is_not_there_is_named(built: Built, tmp_path: Path) -> None:
    with pytest.raises(EdgeForgeError, match="there is no"):
        pipeline.build(recipe.load(built.recipe), lambda event: None, tmp_path / "no.json")


def test_a_name_that_no_file_system_takes_is_missing(tmp_path: Path) -> None:
    seen = {"bytes": 1, "sha256": "0" * 64, "reproducible": True}
    facts = {"format": "edgeforge-lock-1", "source": "nowhere", "data": {}, "stages": {}, "files": {"x" * 5000: seen},
             "inputs": {"threads": 1, "model": "0" * 64}}
    (tmp_path / lock.FILE).write_text(json.dumps(facts), encoding="utf-8")
    (line,) = lock.check(tmp_path).damaged
    assert line.endswith("x: missing")
    assert len(line) < 300


@pytest.mark.parametrize("change", [
    {"source": {"": {}}}, {"source": {"onnx": "a"}}, {"source": 3},
    {"inputs": {"threads": 1, "model": "0", "tools": 5}},
    {"inputs": {"threads": 1, "model": "0", "tools": {"": "1"}}}])
def test_a_damaged_lock_is_no_lock(change: dict[str, object], tmp_path: Path) -> None:
    facts = {"format": "edgeforge-lock-1", "source": "nowhere", "data": {}, "stages": {}, "files": {},
             "inputs": {"threads": 1, "model": "0" * 64}}
    (tmp_path / lock.FILE).write_text(json.dumps(facts | change), encoding="utf-8")
    with pytest.raises(EdgeForgeError, match="is not a lock"):
        lock.check(tmp_path)
