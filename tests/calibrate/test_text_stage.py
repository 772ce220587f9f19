"""What the text stage leaves: windows of every domain, and the facts about them that later steps rely on."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_build import Built

from edgeforge import checkpoint
from edgeforge.build import HASHES
from edgeforge.calibrate.overlap import hashes
from edgeforge.calibrate.template import Frame
from edgeforge.checkpoint import open_checkpoint
from edgeforge.lock import load
from edgeforge.stages.plan import STAGES
from edgeforge.stages.text import _spread


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


@pytest.mark.parametrize(("a", "b"), [(16, 8), (8, 8), (3, 7), (1, 1), (5, 0)])
def test_any_first_k_hold_an_even_share(a: int, b: int) -> None:
    window = np.zeros(1, np.int64)
    made = [domain for domain, _ in _spread([("text", window)] * a, [("own", window)] * b)]
    assert Counter(made) == Counter({"text": a, "own": b})
    for k in range(a + b + 1):
        assert abs(made[:k].count("text") - k * a / (a + b)) <= 1
