"""What the cache of a plain build keeps, and for whom: the same in kind as a language model's, and quick to build."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from builds import contents, flip, leftovers, rebuilt
from edgeforge_runtime.plain import PlainManifest

from edgeforge import cache, lock, pipeline, recipe
from edgeforge.errors import EdgeForgeError, GateError
from edgeforge.pipeline import Event
from edgeforge.stages.plan import GRAPH_STAGES


def artifact(path: Path, stage: str) -> Path:
    """The artifact that the recipe's bundle was made from."""
    return path.parent / "out" / ".edgeforge" / stage / PlainManifest.load(bundle(path)).stamps[f"stage.{stage}"]


def bundle(path: Path) -> Path:
    return path.parent / "out" / "bundle"


def test_damage_that_another_build_mends_at_this_moment_is_mended_once(
        copied_cnn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(artifact(copied_cnn, "optimize") / "model.data")
    for place in (artifact(copied_cnn, "quantize"), bundle(copied_cnn)):
        shutil.rmtree(place)
    others: list[dict[str, list[str]]] = []
    real = cache.damage

    def seen_by_both(place: Path) -> str | None:
        found = real(place)
        monkeypatch.setattr(cache, "damage", real)
        others.append(rebuilt(copied_cnn))  # another whole build, between the look and the lock
        return found

    monkeypatch.setattr(cache, "damage", seen_by_both)
    mine = rebuilt(copied_cnn)
    assert (others[0]["damaged"], others[0]["done"]) == (["optimize"], ["optimize", "quantize", "bundle"])
    assert (mine["damaged"], mine["done"]) == ([], [])


def test_a_stage_that_fell_short_is_kept_and_the_build_goes_on_once_its_gate_lets_it(copied_cnn: Path) -> None:
    """The search of an hour is not thrown away because it lost too much: that can be looked at, or allowed."""
    text = copied_cnn.read_text(encoding="utf-8")
    copied_cnn.write_text(text + "quantize: {rounding: nearest}\ngates: {quantize_db: 149}\n", encoding="utf-8")
    for expected in (["started", "failed"], ["failed"]):
        events: list[Event] = []
        with pytest.raises(GateError, match="gate after quantize failed") as caught:
            pipeline.build(recipe.load(copied_cnn), events.append)
        assert "`gates.quantize_db`" in caught.value.hint
        assert [(e.stage, e.kind) for e in events if e.kind in ("started", "failed")] == [
            ("quantize", kind) for kind in expected]
    copied_cnn.write_text(text + "quantize: {rounding: nearest}\ngates: {quantize_db: 20}\n", encoding="utf-8")
    assert rebuilt(copied_cnn)["done"] == ["export", "compile", "bundle"]
    copied_cnn.write_text(text + "quantize: {rounding: nearest}\ngates: {quantize_db: 149}\n", encoding="utf-8")
    with pytest.raises(GateError, match="gate after quantize failed"):
        pipeline.build(recipe.load(copied_cnn), lambda event: None)


def renamed(path: Path, onnx: Path, out: str = "bundle") -> Path:
    """A recipe of another file with the same graph, into the same place or another."""
    shutil.copyfile(path.parent / "small cnn.onnx", onnx)
    text = path.read_text(encoding="utf-8")
    text = text.replace(str(path.parent / "small cnn.onnx"), str(onnx)).replace("/out/bundle", f"/out/{out}")
    other = path.with_name(f"{out}-{onnx.stem}.yaml")
    other.write_text(text, encoding="utf-8")
    return other


def test_a_model_of_another_name_gets_files_of_that_name(copied_cnn: Path) -> None:
    path = renamed(copied_cnn, copied_cnn.parent / "beta.onnx")
    assert rebuilt(path)["done"] == [s.name for s in GRAPH_STAGES]
    assert (bundle(path) / "device" / "beta.onnx").is_file()
    assert not list(bundle(path).rglob("small*"))
    assert PlainManifest.load(bundle(path)).name == json.loads((bundle(path) / "report.json").read_text())["model"]


def test_a_model_elsewhere_is_the_same_model_and_the_lock_says_where(copied_cnn: Path, tmp_path: Path) -> None:
    (tmp_path / "moved").mkdir()
    path = renamed(copied_cnn, tmp_path / "moved" / "small cnn.onnx")
    assert rebuilt(path)["done"] == ["bundle"]
    assert lock.load(bundle(path))["source"]["onnx"] == str(tmp_path / "moved" / "small cnn.onnx")


def test_a_lock_takes_the_model_from_elsewhere_but_not_under_another_name(copied_cnn: Path, tmp_path: Path) -> None:
    wanted = bundle(copied_cnn) / lock.FILE
    (tmp_path / "moved").mkdir()
    path = renamed(copied_cnn, tmp_path / "moved" / "small cnn.onnx", "again")
    pipeline.build(recipe.load(path), lambda event: None, wanted)
    assert contents(path.parent / "out" / "again") == contents(bundle(copied_cnn))
    path = renamed(copied_cnn, tmp_path / "moved" / "beta.onnx", "other")
    with pytest.raises(EdgeForgeError, match="name: small cnn locked, beta here") as caught:
        pipeline.build(recipe.load(path), lambda event: None, wanted)
    assert "vector instructions" not in str(caught.value)
    assert not (path.parent / "out" / "other").exists()


@pytest.mark.parametrize("there", [True, False])
def test_a_file_that_appears_in_the_bundle_during_the_build_is_not_thrown_away(copied_cnn: Path, there: bool) -> None:
    place = bundle(copied_cnn)
    (place / "report.json").unlink() if there else shutil.rmtree(place)

    def tell(event: Event) -> None:
        if (event.stage, event.kind) == ("bundle", "started"):
            place.mkdir(exist_ok=True)
            (place / "notes.txt").write_text("measured on my phone")

    with pytest.raises(EdgeForgeError, match="notes.txt" if there else "not an EdgeForge bundle"):
        pipeline.build(recipe.load(copied_cnn), tell)
    assert (place / "notes.txt").read_text() == "measured on my phone"
    assert not leftovers(copied_cnn.parent)


def test_a_bundle_stays_sound_when_its_samples_are_cut(copied_cnn: Path) -> None:
    rebuilt(copied_cnn)  # the bundle knows where its model lies now
    samples = copied_cnn.with_suffix(".npz")
    samples.write_bytes(samples.read_bytes()[:-100])
    found = lock.check(bundle(copied_cnn))
    assert found.damaged == ()
    (line,) = found.drift
    assert line.startswith("model: model.calibration: ")
    assert str(samples) in line


def test_a_bundle_of_other_code_would_come_out_otherwise(copied_cnn: Path) -> None:
    path = bundle(copied_cnn) / lock.FILE
    raw = json.loads(path.read_text())
    assert lock.check(bundle(copied_cnn)).drift == ()
    raw["inputs"]["code"]["quantize"] = "0" * 64
    path.write_text(json.dumps(raw))
    (line,) = lock.check(bundle(copied_cnn)).drift
    assert line.startswith("code.quantize: 000000000000… locked, ")
