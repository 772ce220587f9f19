"""What the text stage leaves: windows of every domain, and the facts about them that later steps rely on."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builds import variant
from tiny_build import Built

from edgeforge import checkpoint, pipeline, recipe, source
from edgeforge.build import HASHES
from edgeforge.calibrate.overlap import Known, hashes
from edgeforge.calibrate.template import Frame, Window
from edgeforge.calibrate.windows import calibration_windows, gate_windows
from edgeforge.checkpoint import open_checkpoint
from edgeforge.errors import RecipeError
from edgeforge.gates import Check
from edgeforge.lock import load
from edgeforge.stages.plan import STAGES
from edgeforge.stages.text import _spread, run


@pytest.fixture
def data(built: Built) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((built.artifact("text") / "data.json").read_text(encoding="utf-8"))
    return raw


@pytest.fixture
def ids(built: Built) -> np.ndarray:
    with np.load(built.artifact("text") / "windows.npz") as arrays:
        return arrays["ids"]


def test_all_domains_are_there(data: dict[str, Any], ids: np.ndarray) -> None:
    assert ids.shape == (16, 128)
    assert ids.dtype == np.int64
    assert Counter(data["domains"]) == data["counts"] == {"chat": 2, "prose": 4, "code": 2, "own": 4, "languages": 4}
    assert set(data["domains"][:8]) == set(data["counts"])  # any first half holds every one of them


def test_the_digest_is_that_of_the_ids(data: dict[str, Any], ids: np.ndarray, built: Built) -> None:
    packed = b"".join(np.array([128, *row], "<i8").tobytes() for row in ids)
    assert data["sha256"] == hashlib.sha256(packed).hexdigest()
    assert (data["windows"], data["tokens"]) == (16, 16 * 128)
    assert load(built.bundle)["data"] == {k: v for k, v in data.items() if k != HASHES}


def test_the_hashes_are_those_of_the_windows(data: dict[str, Any], ids: np.ndarray, checkpoint_folder: Path) -> None:
    tokenizer = checkpoint.load_tokenizer(open_checkpoint(checkpoint_folder))
    expected = [hashes(tokenizer, row, Frame.of(tokenizer)).tolist() for row in ids]
    assert [np.frombuffer(bytes.fromhex(text), ">u8").tolist() for text in data[HASHES]] == expected
    assert sum(map(len, expected)) > 100


def test_nothing_after_it_reads_the_recipe_s_text() -> None:
    """transform and calibrate follow the windows, not the keys that made them."""
    needs = {stage.name: stage.needs for stage in STAGES}
    assert "text" in needs["transform"]
    assert "text" in needs["calibrate"]


MANY = {"windows": 40}


def stage(built: Built, text: Path, windows: int, out: Path) -> list[Check]:
    """The text stage alone, of a user's file and nothing that the model writes, under gates that read a lot."""
    path = variant(built, out.name, calibrate={"text": str(text), "windows": windows, "samples": 0}, gates=MANY)
    wished = recipe.load(path)
    out.mkdir()
    return run(pipeline.start(wished, source.open_source(wished.model)), {}, out)


@pytest.fixture
def gates(built: Built, checkpoint_folder: Path) -> list[Window]:
    return gate_windows(checkpoint.load_tokenizer(open_checkpoint(checkpoint_folder)),
                        recipe.load(variant(built, "gates", gates=MANY)))


def written(tokenizer: Any, windows: list[Window], file: Path, *more: str) -> Path:
    """A user's file that holds what the gates read."""
    texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in windows]
    file.write_text("\n\n".join([*texts, *more]), encoding="utf-8")
    return file


def test_nothing_that_the_gates_measure_on_is_calibrated_on(built: Built, checkpoint_folder: Path,
                                                            gates: list[Window], tmp_path: Path) -> None:
    tokenizer = checkpoint.load_tokenizer(open_checkpoint(checkpoint_folder))
    own = (" ".join(f"{word}{i}" for word in ("lanterns", "and", "copper", "roofs")) for i in range(1000))
    file, known = written(tokenizer, gates, tmp_path / "own.txt", *own), Known(tokenizer, gates)
    [check] = stage(built, file, 60, tmp_path / "own")
    with np.load(tmp_path / "own" / "windows.npz") as arrays:
        made = list(arrays["ids"])
    assert len(list(known.without(made))) == check.value == 60
    left_out = re.search(r"; left out (\d+) that repeat what the gates measure on", check.note)
    assert left_out
    every = [window for _, window in calibration_windows(tokenizer, 128, 60, file)]
    assert 3 < 60 - len(list(known.without(every))) <= int(left_out[1])


def test_a_file_of_nothing_else_is_an_error(built: Built, checkpoint_folder: Path, gates: list[Window],
                                            tmp_path: Path) -> None:
    file = written(checkpoint.load_tokenizer(open_checkpoint(checkpoint_folder)), gates, tmp_path / "same.txt")
    with pytest.raises(RecipeError, match=r"same\.yaml:\d+: calibrate\.text: .*same.txt holds (\d+|too little) .*; "
                                          r"\d+ are asked for; \d+ more repeat what the gates measure on"):
        stage(built, file, 30, tmp_path / "same")


def test_a_short_file_is_read_as_text(built: Built, tmp_path: Path) -> None:
    """A read-me of 2000 characters, windows 3, samples 0: "holds chat for 0 windows"."""
    file = tmp_path / "readme.txt"
    file.write_text("\n\n".join(" ".join(f"lantern{i}copper{j}" for j in range(10)) for i in range(10)))
    [check] = stage(built, file, 3, tmp_path / "short")
    assert (check.value, check.note) == (3, "3 text")
    with pytest.raises(RecipeError, match=r"\.yaml:\d+: calibrate\.text: .*readme\.txt holds \d+ cal"):
        stage(built, file, 4000, tmp_path / "long")


def test_the_ending_by_which_a_file_is_read_counts(built: Built, tmp_path: Path) -> None:
    """The same bytes are other windows as text and as lines of JSON; under another name they are not."""
    line = json.dumps({"text": "word " * 4000}) + "\n"
    found = []
    for name in ("a.txt", "b.txt", "a.jsonl", "b.JSONL", "c"):
        (tmp_path / name).write_text(line, encoding="utf-8")
        wished = recipe.load(variant(built, "ending", calibrate={"text": str(tmp_path / name), "samples": 0}))
        job = pipeline.start(wished, source.open_source(wished.model))
        found.append({stage.name: key for stage, key, _ in pipeline.places(job)}["text"])
    assert found[0] == found[1] == found[4] != found[2] == found[3]


@pytest.mark.parametrize(("a", "b"), [(16, 8), (8, 8), (3, 7), (1, 1), (5, 0)])
def test_any_first_k_hold_an_even_share(a: int, b: int) -> None:
    window = np.zeros(1, np.int64)
    made = [domain for domain, _ in _spread([("text", window)] * a, [("own", window)] * b)]
    assert Counter(made) == Counter({"text": a, "own": b})
    for k in range(a + b + 1):
        assert abs(made[:k].count("text") - k * a / (a + b)) <= 1
