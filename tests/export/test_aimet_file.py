"""A file of encodings by itself: what it shows to be wrong before any graph is there, in words for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgeforge.errors import EdgeForgeError
from edgeforge.export import aimet_file

ROW: dict[str, Any] = {"name": "x", "dtype": "INT", "enc_type": "PER_TENSOR", "bw": 8, "scale": [1.0], "offset": [-3]}
LPBQ: dict[str, Any] = ROW | {"enc_type": "LPBQ", "compressed_bw": 4, "block_size": 16, "offset": [-128] * 2,
                              "scale": [1.0, 2.0], "per_block_int_scale": [16, 2, 3, 16]}
NESTED: dict[str, Any] = {"name": "x", "output_dtype": "int8", "y_scale": 0.5}
NESTED_LPBQ: dict[str, Any] = {"name": "x", "output_dtype": "int4", "y_scale": {"x": [[16, 3]], "x_scale": [1.0],
                                                                                "axis": 0}, "axis": 1, "block_size": 2}


def _file(folder: Path, *rows: Any) -> Path:
    path = folder / "a.encodings"
    flat = all("bw" in row for row in rows)
    path.write_text(json.dumps({"version": "1.0.0", "activation_encodings": [], "param_encodings": rows} if flat else
                               {"version": "2.1.0", "encodings": rows}), encoding="utf-8")
    return path


@pytest.mark.parametrize(("row", "said"), [
    (ROW | {"scale": [-1]}, "x: a scale is not finite and above 0"),
    (ROW | {"scale": [float("nan")]}, "x: a scale is not finite and above 0"),
    (ROW | {"scale": [1e300]}, "x: a scale is not finite and above 0"),
    (NESTED | {"y_scale": [1.0, 0.0], "axis": -1}, "x: a scale is not finite and above 0"),
    ({k: v for k, v in ROW.items() if k != "scale"}, "x: no 'scale'"),
    ({k: v for k, v in NESTED.items() if k != "y_scale"}, "x: no 'y_scale'"),
    (ROW | {"scale": "1.0"}, "x: '1.0' where scales should be"),
    (ROW | {"scale": []}, r"x: \[\] where scales should be"),
    (ROW | {"scale": [1, 2]}, "x: PER_TENSOR with 2 numbers where 1 is needed"),
    (ROW | {"offset": [1]}, "x: a zero point is not on the grid 0..255"),
    (NESTED | {"y_zero_point": 128}, "x: a zero point is not on the grid -128..127"),
    (LPBQ | {"per_block_int_scale": [16, 17, 3, 16]}, "x: a block's scale is not within 1..16"),
    (LPBQ | {"per_block_int_scale": [16, 0, 3, 16]}, "x: a block's scale is not within 1..16"),
    (LPBQ | {"per_block_int_scale": [16, 1.5, 3, 16]}, "x: .* where whole numbers should be"),
    (LPBQ | {"per_block_int_scale": [16, 2, 16]}, "x: scales: 2, which does not divide its 3 blocks"),
    (LPBQ | {"compressed_bw": 8}, "x: whole-number block scales are for codes of 4 bits, not 8"),
    (LPBQ | {"block_size": "16"}, "x: block_size '16' where a whole number above 0"),
    (NESTED_LPBQ | {"block_size": 0}, "x: block_size 0 where a whole number above 0"),
    (NESTED_LPBQ | {"y_scale": {"x": [[16, 33]], "x_scale": [1.0]}}, "x: a block's scale is not within 1..16"),
    (ROW | {"dtype": "FLOAT", "bw": 16}, "x: it is in floating point, and every value needs an integer grid"),
    (NESTED | {"output_dtype": "bfloat16"}, "x: it is in floating point"),
])
def test_what_the_file_alone_shows_is_found_without_a_graph(row: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(EdgeForgeError, match=rf"a\.encodings: the encoding of {said}") as caught:
        aimet_file.glances(_file(tmp_path, row))
    assert "take it out" in caught.value.hint


@pytest.mark.parametrize("row", [ROW, LPBQ, NESTED, NESTED_LPBQ, NESTED | {"axis": None, "block_size": None}])
def test_a_sound_entry_is_one_glance_however_often_it_stands_there(row: dict[str, Any], tmp_path: Path) -> None:
    bits, scales = (4, "whole blocks") if row in (LPBQ, NESTED_LPBQ) else (8, "tensor")
    seen, = aimet_file.glances(_file(tmp_path, row, dict(row)))
    assert (seen.name, seen.bits, seen.scales, seen.symmetric) == ("x", bits, scales, row is not ROW)


def test_a_bias_is_not_read(tmp_path: Path) -> None:
    seen, = aimet_file.glances(_file(tmp_path, ROW | {"bw": 32, "scale": [0.0]}))
    assert seen.bits == 32


def test_all_damaged_entries_are_told_at_once(tmp_path: Path) -> None:
    rows = [ROW | {"name": f"v{i}", "scale": [0]} for i in range(12)]
    with pytest.raises(EdgeForgeError, match=r"a\.encodings: 12 encodings are damaged:\n  v0: a scale") as caught:
        aimet_file.glances(_file(tmp_path, *rows))
    assert caught.value.message.endswith("\n  and 2 more")


def test_two_different_entries_for_a_name(tmp_path: Path) -> None:
    with pytest.raises(EdgeForgeError, match=r"a\.encodings: two different encodings for x") as caught:
        aimet_file.glances(_file(tmp_path, ROW, ROW | {"scale": [2.0]}))
    assert caught.value.hint == "delete one of the two entries"


FLAT = '{"version": "1.0.0", "activation_encodings": %s, "param_encodings": %s}'


@pytest.mark.parametrize(("text", "said"), [
    (FLAT % ("[]", "[]"), "it names no value"),
    ('{"version": "2.0.0", "encodings": []}', "it names no value"),
    (FLAT % ("[]", "{}"), "'param_encodings' is no list .version 0.6.1 had none.; versions that are read: 1.0.0, "),
    (FLAT % (json.dumps([ROW]), '{"w": []}'), "'param_encodings' is no list"),
    ('{"version": "2.0.0", "encodings": {}}', "'encodings' is no list"),
    ('{"version": "0.6.1"}', "version '0.6.1'; known: 1.0.0, 2.0.0, 2.1.0"),
    ("{}", "no 'version'"),
    ("[1, 2]", r"\[1, 2\] stands where an object with a version should"),
    (FLAT % ('["x"]', "[]"), "'x' stands where an entry should"),
    (FLAT % (json.dumps([ROW | {"name": None}]), "[]"), "an entry's name is None"),
    (FLAT % ('[{"bw": 8}]', "[]"), "an entry has no 'name'"),
    ((FLAT % ("[]", "[]")).replace("1.0.0", "2.0.0"),
     "no 'encodings', which version 2.0.0 has; it looks like version 1.0.0"),
    ('{"version": "1.0.0", "encodings": []}',
     "no 'activation_encodings', which version 1.0.0 has; it looks like version 2.0.0"),
    (json.dumps({"version": "2.1.0", "encodings": [ROW]}),
     "'x' is not in the layout of version 2.1.0; it looks like version 1.0.0"),
])
def test_a_file_of_another_layout_is_told_in_plain_words(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.encodings").write_text(text, encoding="utf-8")
    with pytest.raises(EdgeForgeError, match=rf"a\.encodings holds no AIMET encodings: {said}"):
        aimet_file.glances(tmp_path / "a.encodings")
