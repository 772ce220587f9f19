"""A text too short for its windows is told before a build, by the tokenizer's file alone, and never wrongly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import tiny_checkpoint
import yaml
from builds import cli, variant
from tiny_build import Built
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from edgeforge import check, recipe
from edgeforge.calibrate import enough, sources
from edgeforge.calibrate.windows import calibration_windows
from edgeforge.errors import RecipeError

PROSE = [topics[key] for key in sorted(topics)][:40]


def text(folder: Path, characters: int) -> Path:
    path = folder / "t.txt"
    path.write_text("\n\n".join(PROSE)[:characters], encoding="utf-8")
    return path


def conversations(folder: Path, count: int, words: int, rows: int = 0) -> Path:
    """count conversations, and so many texts beside them."""
    talk = [{"messages": [{"role": "user", "content": f"Tell me of {i}."},
                          {"role": "assistant", "content": f"It is {i} and more. " * words}]} for i in range(count)]
    path = folder / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, [*talk, *({"text": PROSE[i]} for i in range(rows))])), encoding="utf-8")
    return path


def made(tokenizer: PreTrainedTokenizerFast, length: int, source: Path | None) -> int:
    """The windows that a build finds."""
    low, high = 0, 4096
    while low < high:
        middle = (low + high + 1) // 2
        try:
            calibration_windows(tokenizer, length, middle, source)
            low = middle
        except RecipeError as error:
            if "never reach" in error.message:  # too few for the template's ids: not what is asked
                low = middle
            else:
                high = middle - 1
    return low


@pytest.fixture(params=[True, False], ids=["template", "plain"])
def tokenizer(request: pytest.FixtureRequest, checkpoint_folder: Path) -> PreTrainedTokenizerFast:
    found = AutoTokenizer.from_pretrained(checkpoint_folder)
    found.chat_template = tiny_checkpoint.TEMPLATE if request.param else None
    return found


@pytest.mark.parametrize("characters", [300, 5_000, 40_000, 150_000])
def test_never_fewer_than_there_are_and_hardly_more(
        tokenizer: PreTrainedTokenizerFast, characters: int, checkpoint_folder: Path, tmp_path: Path) -> None:
    source = text(tmp_path, characters)
    there = made(tokenizer, 128, source)
    said = enough.most_windows(sources.read(source), source, 4096, 128, checkpoint_folder / "tokenizer.json")
    # Of what is lent to chat, long answers are cut, most for a vocabulary as small as this: SmolLM2's gives 1.2.
    assert there <= said <= (2 if tokenizer.chat_template else 1.25) * there + 2


@pytest.mark.parametrize(("count", "words", "rows"), [(3, 200, 0), (40, 4, 0), (5, 50, 20)])
def test_conversations(count: int, words: int, rows: int, checkpoint_folder: Path, tmp_path: Path) -> None:
    source, vocabulary = conversations(tmp_path, count, words, rows), checkpoint_folder / "tokenizer.json"
    there = made(AutoTokenizer.from_pretrained(checkpoint_folder), 128, source)
    assert there <= enough.most_windows(sources.read(source), source, 4096, 128, vocabulary) <= 3 * count
    assert enough.most_windows(sources.read(source), source, there, 128, vocabulary) == there


def test_the_default_text_ends_too(tokenizer: PreTrainedTokenizerFast, checkpoint_folder: Path) -> None:
    said = enough.most_windows(sources.builtin(), None, 4096, 512, checkpoint_folder / "tokenizer.json")
    assert made(tokenizer, 512, None) <= said < 4096


def test_what_cannot_be_counted_is_left_to_the_build(checkpoint_folder: Path, tmp_path: Path) -> None:
    source = text(tmp_path, 300)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert enough.most_windows(sources.read(source), source, 64, 128, tmp_path / "tokenizer.json") == 64


def test_check_and_build_say_so_before_any_work(built: Built, tmp_path: Path) -> None:
    """The build found it after adapt and optimize."""
    text(tmp_path, 5_000)
    path = variant(built, "short", calibrate={"text": str(tmp_path / "t.txt"), "windows": 64, "tokens": 128},
                   out=str(tmp_path / "out" / "b"))
    report = check.examine(recipe.load(path))
    (finding,) = (f for f in report.findings if "calibrate" in f.where)
    assert report.exit_code == 2
    assert f"short.yaml:2: calibrate.text: {tmp_path}/t.txt holds at most " in str(finding)
    assert "calibration windows of 128 tokens, and 64 are asked for" in finding.what
    held = int(finding.what.partition("at most ")[2].split()[0])
    assert finding.change.startswith(f"set calibrate.windows to {held} or less, or calibrate.tokens to less")
    done = cli("build", path)
    assert done.returncode == 2
    assert "64 are asked for" in done.stderr
    assert not (tmp_path / "out").exists()
    raw = yaml.safe_load(path.read_text())
    raw["calibrate"]["windows"] = 1
    path.write_text(yaml.safe_dump(raw))
    assert check.examine(recipe.load(path)).exit_code == 0


def test_a_default_text_that_is_too_short_names_the_key_that_asks(built: Built) -> None:
    path = variant(built, "many", calibrate={"windows": 4000, "tokens": 256})
    (finding,) = (f for f in check.examine(recipe.load(path)).findings if f.severity == "recipe")
    assert "calibrate.windows: the default text holds at most " in str(finding)


def test_a_text_that_nobody_reads_may_be_short(built: Built, tmp_path: Path) -> None:
    """In float16, with nothing to fit."""
    path = variant(built, "half", calibrate={"text": str(text(tmp_path, 300)), "windows": 64},
                   target={"chip": "geforce-rtx-4090"}, quantize={"weights": 16, "head": 16, "transforms": []})
    raw = yaml.safe_load(path.read_text())
    raw["gates"] = {}
    path.write_text(yaml.safe_dump(raw))
    assert not [f for f in check.examine(recipe.load(path)).findings if "calibrate" in f.where]


def test_counting_needs_no_torch_and_no_time(built: Built, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n\n".join(f"paragraph {i} " * 20 for i in range(8000)))
    path = variant(built, "counted", calibrate={"text": str(tmp_path / "t.txt"), "windows": 4096, "tokens": 256})
    code = ("import sys, time\nfrom pathlib import Path\nfrom edgeforge import check, recipe\n"
            "made = recipe.load(Path(sys.argv[1]))\ncheck.examine(made)\nbegun = time.process_time()\n"
            "found = [f.what for f in check.examine(made).findings]\n"
            "print(sorted({'torch', 'transformers'} & set(sys.modules)), time.process_time() - begun, found)")
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120,
                          check=True)
    loaded, seconds, found = done.stdout.split(" ", 2)
    assert (loaded, "tokens, and 4096 are asked for" in found) == ("[]", True)
    assert float(seconds) < 2, "of CPU time"
