"""A build that stopped, was damaged, or is not alone: what is sound is kept, the rest is made again, byte for byte."""

from __future__ import annotations

import importlib.metadata
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from builds import cli, command, contents, flip, leftovers, rebuilt, variant
from tiny_build import Built

import edgeforge
from edgeforge import cache, gates, pipeline, recipe, sections, source
from edgeforge.build import STAMP
from edgeforge.errors import EdgeForgeError, GateError
from edgeforge.stages.plan import STAGES

NAMES = [s.name for s in STAGES]


@pytest.fixture
def copy(built: Built, tmp_path: Path) -> Built:
    """The tiny build's cache and bundle, to be damaged."""
    root = tmp_path / "copy"
    shutil.copytree(built.cache.parent, root / "out")
    raw = yaml.safe_load(built.recipe.read_text(encoding="utf-8")) | {"out": str(root / "out" / built.bundle.name)}
    path = root / "tiny.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return Built(root / "out" / built.bundle.name, root / "out" / ".edgeforge", path, ())


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def rewrite(path: Path) -> None:
    path.write_bytes(path.read_bytes()[::-1])


def test_an_untouched_copy_is_found_as_it_is(copy: Built) -> None:
    assert rebuilt(copy.recipe) == {"cached": NAMES, "damaged": [], "done": []}


def test_a_file_of_another_time_but_the_same_contents_is_sound(copy: Built) -> None:
    for path in copy.cache.rglob("model.data"):
        os.utime(path)
    assert rebuilt(copy.recipe)["done"] == []


@pytest.mark.parametrize("harm", [cut, rewrite, Path.unlink])
def test_what_sizes_and_times_show_is_made_again_by_the_next_build(copy: Built, harm: Callable[[Path], None]) -> None:
    before = contents(copy.cache.parent)
    harm(copy.artifact("export") / "model.encodings")
    assert rebuilt(copy.recipe)["done"] == ["export"]
    assert contents(copy.cache.parent) == before


def test_damage_that_only_a_hash_shows_is_noticed_before_a_stage_reads_it(copy: Built) -> None:
    before = contents(copy.cache.parent)
    flip(copy.artifact("transform") / "model.data")
    assert rebuilt(copy.recipe)["done"] == []  # nothing was read
    shutil.rmtree(copy.artifact("quantize"))
    found = rebuilt(copy.recipe)
    assert found["damaged"] == ["transform"]
    assert found["done"] == ["transform", "quantize"]
    assert contents(copy.cache.parent) == before


def test_damage_behind_damage_is_mended_first(copy: Built) -> None:
    before = contents(copy.cache.parent)
    flip(copy.artifact("optimize") / "model.data")
    flip(copy.artifact("transform") / "model.data")
    shutil.rmtree(copy.artifact("calibrate"))
    assert rebuilt(copy.recipe)["done"] == ["optimize", "transform", "calibrate"]
    assert contents(copy.cache.parent) == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": 1}', '{"key": "x", "files": []}'])
def test_a_stamp_that_says_nothing_is_no_artifact(copy: Built, text: str) -> None:
    (copy.artifact("split") / STAMP).write_text(text)
    assert rebuilt(copy.recipe)["done"] == ["split"]


def test_a_damaged_bundle_is_made_again(copy: Built) -> None:
    before = contents(copy.bundle)
    cut(copy.bundle / "device" / "part_2_of_3.bin")
    assert rebuilt(copy.recipe)["done"] == ["bundle"]
    assert contents(copy.bundle) == before


def test_a_users_own_file_in_a_bundle_is_not_thrown_away(copy: Built) -> None:
    (copy.bundle / "notes.txt").write_text("measured on my phone")
    done = cli("build", copy.recipe)
    assert done.returncode == 2
    assert "notes.txt" in done.stderr
    assert (copy.bundle / "notes.txt").is_file()


@pytest.mark.slow
def test_changed_code_reruns_what_imports_it(built: Built, tmp_path: Path) -> None:
    source = Path(edgeforge.__file__).parent
    shutil.copytree(source, tmp_path / "edgeforge", ignore=shutil.ignore_patterns("__pycache__"))
    path = variant(built, "edited")

    def run() -> dict[str, list[str]]:
        paths = os.pathsep.join([str(tmp_path), str(source.parent / "runtimes")])
        done = subprocess.run(command("build", path, "--json"), env=os.environ | {"PYTHONPATH": paths}, cwd=tmp_path,
                              capture_output=True, text=True, timeout=300, check=True)
        rows = [json.loads(line) for line in done.stdout.splitlines()][:-1]
        return {kind: [r["stage"] for r in rows if r["event"] == kind] for kind in ("cached", "done")}

    assert run()["done"] == ["bundle"]  # the same code elsewhere is the same code
    for room, stages in (("report/html.py", ["bundle"]), ("quantize/sequential.py", NAMES[5:]), ("cli/build.py", [])):
        with (tmp_path / "edgeforge" / room).open("a") as file:
            file.write("# another thought\n")
        assert run()["done"] == stages, room


def test_another_version_of_a_tool_reruns_what_uses_it(copy: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda n: "2.8.0" if n == "onnxruntime-qnn" else real(n))
    assert rebuilt(copy.recipe)["done"] == ["compile", "bundle"]


def _keys(path: Path) -> dict[str, str]:
    wished = recipe.load(path)
    return {s.name: key for s, key, _ in pipeline.places(pipeline.start(wished, source.open_source(wished.model)))}


def test_no_gate_but_the_number_of_windows_decides_what_a_stage_makes(built: Built) -> None:
    before = _keys(built.recipe)
    silent = recipe.load(built.recipe).silent
    for key in (k for k in sections.Gates.model_fields if ("gates", k) not in silent):
        value = {"windows": 3, "quantize_flips": 1}.get(key, 1.5)
        other = _keys(variant(built, "asked", gates={key: value}))
        assert [n for n in NAMES if other[n] != before[n]] == (list(NAMES) if key == "windows" else ["bundle"]), key


def test_another_gate_is_held_against_what_was_measured(built: Built) -> None:
    path = variant(built, "judged", gates={"quantize_db": 20, "emulator_db": 30, "adapt_db": 70})
    assert rebuilt(path) == {"cached": NAMES[:-1], "damaged": [], "done": ["bundle"]}
    bundle = recipe.load(path).out
    stages = json.loads((bundle / "report.json").read_text())["stages"]
    told = {c["name"]: c["threshold"] for s in stages for c in s["checks"]}
    assert (told["quantize: logits"], told["adapt: decode logits"]) == (20, 70)
    assert told["compile: decode steps through all parts, emulator against CPU"] == 30
    assert json.loads((bundle / "edgeforge.lock.json").read_text())["inputs"]["recipe"]["gates"]["quantize_db"] == 20
    assert rebuilt(path)["done"] == []


@pytest.mark.parametrize(("key", "stage", "worst", "step"), [
    ("quantize_db", "quantize", min, 0.01), ("quantize_kl", "quantize", max, -1e-6),
    ("emulator_db", "compile", min, 0.01)])
def test_a_gate_beyond_what_was_measured_stops_a_finished_build_at_once(
        built: Built, key: str, stage: str, worst: Callable[..., float], step: float) -> None:
    """Nothing is run to find out; the artifact stays, and a gate on its right side finds it."""
    measured = worst(c.value for c in gates.load(built.artifact(stage)) if c.gate == key)
    path, events = variant(built, "beyond", gates={key: measured + step}), []
    with pytest.raises(GateError, match=f"gate after {stage} failed:\n  {stage}: "):
        pipeline.build(recipe.load(path), events.append)
    assert [(e.stage, e.kind) for e in events if e.kind != "cached"] == [(stage, "failed")]
    done = cli("build", path)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert rebuilt(variant(built, "beyond", gates={key: measured - step}))["done"] == ["bundle"]


@pytest.mark.slow
def test_a_full_disk_is_named_and_leaves_nothing(built: Built, tmp_path: Path) -> None:
    """A limit on file sizes fails a write in the middle, as a full disk does."""
    path = variant(built, "full", out=str(tmp_path / "out" / "tiny"))
    for limit in (2000, 90_000, 300_000):
        done = subprocess.run(command("build", path), capture_output=True, text=True, timeout=300, check=False,
                              preexec_fn=lambda size=limit: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
        assert done.returncode == 1, (limit, done.stdout, done.stderr)
        assert "free disk space" in done.stderr
        assert "Traceback" not in done.stderr
        assert not leftovers(tmp_path / "out")
        assert not (tmp_path / "out" / "tiny").exists()
    done = cli("build", path)
    assert done.returncode == 0
    assert contents(tmp_path / "out" / "tiny") == contents(built.bundle)


@pytest.mark.parametrize("place", ["/proc/edgeforge/tiny", "/sys/edgeforge/tiny"])
def test_a_place_that_takes_no_files_is_named(built: Built, place: str) -> None:
    done = cli("build", variant(built, "readonly", out=place))
    assert done.returncode == 1
    assert place.rsplit("/", 1)[0] in done.stderr
    assert "Traceback" not in done.stderr


def test_the_old_folder_stays_when_the_new_one_cannot_take_its_place(tmp_path: Path) -> None:
    place = tmp_path / "bundle"
    place.mkdir()
    (place / "old").write_text("")
    with pytest.raises(EdgeForgeError), cache.whole(place) as work:
        shutil.rmtree(work)  # so that the last rename fails
    assert [p.name for p in tmp_path.rglob("*")] == ["bundle", "old"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path, there: bool) -> None:
    """A bundle's place on another disk; with nothing at the far end yet, too."""
    far, link = tmp_path / "far" / "bundle", tmp_path / "near" / "bundle"
    far.parent.mkdir()
    link.parent.mkdir()
    link.symlink_to(far, target_is_directory=True)
    if there:
        far.mkdir()
        (far / "old").write_text("")
    with cache.whole(link) as work:
        (work / "new").write_text("")
    assert [p.name for p in link.parent.iterdir()] == ["bundle"]
    assert link.is_symlink()
    assert [p.name for p in far.parent.rglob("*")] == ["bundle", "new"]


def test_a_killed_build_is_swept_up_by_the_next(built: Built) -> None:
    bundles = built.cache.parent
    wreck, bystander = bundles / ".deadbeef.edgeforge-0badcafe", bundles / ".backup-0badcafe"
    for folder in (wreck, bystander):
        folder.mkdir()
    pipeline.build(recipe.load(variant(built, "swept")), lambda event: None)
    assert not wreck.exists()
    assert bystander.exists()
