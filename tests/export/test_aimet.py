"""AIMET 1.0.0 as other tools read it: parsed back with the published rules, every code means the same real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeforge import encodings
from edgeforge.encodings import Encoding, Table
from edgeforge.export import aimet
from edgeforge.quantize.weights.grid import per_channel


def _print(folder: Path, entries: dict[str, Encoding], parameters: list[str]) -> dict[str, Any]:
    path = folder / "model.encodings"
    aimet.write(path, Table(entries), parameters, "edgeforge test")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _entry(folder: Path, encoding: Encoding) -> dict[str, Any]:
    (entry,) = _print(folder, {"w": encoding}, ["w"])["param_encodings"]
    return dict(entry)


def _real(entry: dict[str, Any], code: np.ndarray) -> np.ndarray:
    """The reader's rule: real = scale * (code + offset), codes counted from 0."""
    return np.asarray(entry["scale"]) * (code + np.asarray(entry["offset"]))


def test_header_and_rooms(tmp_path: Path) -> None:
    grid = encodings.per_tensor(-1, 1, 8)
    made = _print(tmp_path, {"b": grid, "w": grid, "a": grid}, ["w", "not there"])
    assert made["version"] == "1.0.0"
    assert made["producer"] == "edgeforge test"
    assert [e["name"] for e in made["activation_encodings"]] == ["a", "b"]
    assert [e["name"] for e in made["param_encodings"]] == ["w"]


@pytest.mark.parametrize(("encoding", "offset", "symmetric"), [
    (Encoding(16, False, np.array(0.5, np.float32), np.array(32768)), -32768, True),
    (Encoding(16, False, np.array(0.5, np.float32), np.array(100)), -100, False),
    (Encoding(16, False, np.array(0.5, np.float32), np.array(65535)), -65535, False),
    (Encoding(8, False, np.array(0.5, np.float32), np.array(128)), -128, True),
    (Encoding(8, False, np.array(0.5, np.float32), np.array(127)), -127, False),
    (Encoding(8, True, np.array(0.5, np.float32), np.array(0)), -128, True),
    (Encoding(16, True, np.array(0.5, np.float32), np.array(7)), -32775, False),
    (Encoding(4, True, np.array(0.5, np.float32), np.array(0)), -8, True),
])
def test_offset_signs(tmp_path: Path, encoding: Encoding, offset: int, symmetric: bool) -> None:
    entry = _entry(tmp_path, encoding)
    assert entry["offset"] == [offset]
    assert entry["is_sym"] is symmetric
    assert (entry["bw"], entry["dtype"], entry["enc_type"]) == (encoding.bits, "INT", "PER_TENSOR")
    codes = np.array([encoding.low, 0, encoding.high])
    np.testing.assert_array_equal(_real(entry, codes - encoding.low), encoding.dequantize(codes))


@pytest.mark.parametrize("axis", [0, 1])
def test_per_channel_scales_follow_the_channel(tmp_path: Path, axis: int) -> None:
    """Rows scaled by powers of ten: the wrong axis would have the wrong length or the wrong order."""
    weight = np.ones((3, 5), np.float32) * (10.0 ** np.arange(3)[:, None] if axis == 0 else 10.0 ** np.arange(5))
    encoding = per_channel(weight.astype(np.float32), axis, 8)
    entry = _entry(tmp_path, encoding)
    assert entry["enc_type"] == "PER_CHANNEL"
    assert entry["offset"] == [-128] * weight.shape[axis]
    np.testing.assert_allclose(np.array(entry["scale"]) * 127, 10.0 ** np.arange(weight.shape[axis]), rtol=1e-6)


def test_per_block_keeps_block_order(tmp_path: Path) -> None:
    scale = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    encoding = Encoding(4, True, scale, np.zeros((2, 3), np.int64), axis=1, block=32)
    entry = _entry(tmp_path, encoding)
    assert (entry["enc_type"], entry["block_size"], entry["bw"]) == ("PER_BLOCK", 32, 4)
    assert entry["scale"] == [1, 2, 3, 4, 5, 6]
    assert entry["offset"] == [-8] * 6


def test_lpbq_fields(tmp_path: Path) -> None:
    """Integer block scales 1..16 of 4 bits over a scale a channel; bw is the grid of products, 8 bits."""
    blocks = np.array([[1, 16, 7], [2, 3, 16]])
    scale = np.array([0.25, 0.5], np.float32)
    encoding = Encoding(4, True, scale, np.zeros((2, 3), np.int64), axis=1, block=64, block_scale=blocks, channel=0)
    entry = _entry(tmp_path, encoding)
    assert entry["enc_type"] == "LPBQ"
    assert (entry["bw"], entry["compressed_bw"], entry["block_size"], entry["is_sym"]) == (8, 4, 64, True)
    assert entry["per_block_int_scale"] == [1, 16, 7, 2, 3, 16]
    assert entry["scale"] == [0.25, 0.5]
    assert entry["offset"] == [-128, -128]
    steps = np.array(entry["per_block_int_scale"]).reshape(2, 3) * np.array(entry["scale"])[:, None]
    np.testing.assert_array_equal(steps, encoding.steps())


def test_scales_survive_to_the_last_bit(tmp_path: Path) -> None:
    scale = np.float32(0.1) / np.float32(3)
    entry = _entry(tmp_path, Encoding(16, False, np.array(scale, np.float32), np.array(0)))
    assert np.float32(entry["scale"][0]) == scale
