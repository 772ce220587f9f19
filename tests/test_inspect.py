"""edgeforge inspect: what it says of each kind, of damaged files, and of what it does not know."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tiny_build import Built
from typer.testing import CliRunner

from edgeforge import cache, cli
from edgeforge.describe import describe
from edgeforge.errors import EdgeForgeError


def quantized() -> onnx.ModelProto:
    """Two weights (int8 per channel, int4 per block), two activation grids, an open dimension."""
    constants = {"w": np.ones((4, 8), np.int8), "ws": np.ones(4, np.float32), "wz": np.zeros(4, np.int8),
                 "bs": np.ones((4, 2), np.float32), "s": np.float32(0.1), "z16": np.uint16(9), "z8": np.uint8(3)}
    initializers = [numpy_helper.from_array(np.array(v), k) for k, v in constants.items()]
    initializers.append(helper.make_tensor("b", TensorProto.INT4, (4, 4), np.zeros(16, np.int8)))
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=0),
        helper.make_node("DequantizeLinear", ["b", "bs"], ["bf"], axis=1, block_size=2),
        helper.make_node("MatMul", ["x", "bf"], ["h"]),
        helper.make_node("QuantizeLinear", ["h", "s", "z16"], ["hq"]),
        helper.make_node("DequantizeLinear", ["hq", "s", "z16"], ["hd"]),
        helper.make_node("MatMul", ["hd", "wf"], ["y"]),
        helper.make_node("QuantizeLinear", ["y", "s", "z8"], ["yq"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["tokens", 4])
    y = helper.make_tensor_value_info("yq", TensorProto.UINT8, ["tokens", 8])
    graph = helper.make_graph(nodes, "g", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], producer_name="test")


def test_an_onnx_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(quantized(), path)
    facts = describe(path)
    assert facts["opsets"] == {"ai.onnx": 21}
    assert facts["inputs"] == [{"name": "x", "dtype": "float", "shape": ["tokens", 4]}]
    assert facts["outputs"] == [{"name": "yq", "dtype": "uint8", "shape": ["tokens", 8]}]
    assert facts["dynamic_dimensions"] == ["tokens"]
    assert facts["operators"] == {"DequantizeLinear": 3, "MatMul": 2, "QuantizeLinear": 2}
    assert facts["quantization"] == {
        "activations": {"uint16": 1, "uint8": 1},
        "weights": {"int8 per channel (axis 0)": 1, "int4 per block of 2": 1}}
    assert facts["parameters"]["bytes_by_type"]["int4"] == 8
    assert facts["parameters"]["bytes_by_type"]["int8"] == 32 + 4
    assert facts["problems"] == []


def test_external_data_that_is_short_or_missing(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(quantized(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    data = tmp_path / "m.data"
    whole = data.stat().st_size
    assert describe(path)["external_files"][0]["bytes"] == whole
    assert describe(path)["problems"] == []
    data.write_bytes(data.read_bytes()[:8])
    (problem,) = describe(path)["problems"]
    assert problem.startswith("m.data is truncated: 8 bytes, weights reach up to ")
    data.unlink()
    assert "m.data is missing" in describe(path)["problems"][0]


@pytest.mark.parametrize(("name", "content", "words"), [
    ("gone.onnx", None, "No such file"),
    ("empty.onnx", b"", "holds no ONNX graph"),
    ("text.onnx", b"hello, this is text\n" * 5, "is not a readable ONNX model|holds no ONNX graph"),
    ("cut.json", b'{"a": {"bits": 8', "is not JSON"),
    ("binary.json", bytes(range(128, 256)), "is not JSON"),
    ("other.json", b'{"hello": 1}', "holds no encodings"),
    ("list.json", b"[1, 2]", "holds no encodings"),
    ("bad.json", b'{"x": {"bits": "many", "scale": 1}}', "is not an encoding table"),
    ("bad.encodings", b'{"version": "1.0.0", "activation_encodings": [1], "param_encodings": []}', "is damaged"),
    ("picture.png", b"\x89PNG", "is of no known kind"),
])
def test_damaged_and_unknown_files_are_named(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EdgeForgeError, match=words) as caught:
        describe(path)
    assert name in str(caught.value)


@given(st.data())
@settings(max_examples=150)
def test_no_damage_to_an_onnx_file_gives_more_than_a_message(
        tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = bytearray(quantized().SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "m.onnx"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with contextlib.suppress(EdgeForgeError):
        json.dumps(describe(path))


def test_our_table_and_aimets_file_count_the_same(built: Built) -> None:
    table = describe(built.artifact("quantize") / "table.json")
    aimet = describe(built.artifact("export") / "model.encodings")
    assert table["kind"] == "encoding table"
    assert aimet["kind"] == "AIMET encodings 1.0.0"
    assert aimet["activations"]["encodings"] + aimet["parameters"]["encodings"] == table["encodings"]
    assert aimet["parameters"]["grids"]["INT8 per channel, symmetric"] == table["grids"][
        "int8 per channel (axis 0), symmetric"]


def test_aimets_older_form(tmp_path: Path) -> None:
    row = {"bitwidth": 8, "dtype": "int", "is_symmetric": "True", "scale": 1, "offset": -128}
    raw = {"version": "0.6.1", "activation_encodings": {"a": [row]}, "param_encodings": {"w": [row, row]}}
    path = tmp_path / "old.encodings"
    path.write_text(json.dumps(raw))
    facts = describe(path)
    assert facts["parameters"]["grids"] == {"int8 per channel, symmetric": 1}


def test_a_context_binary(built: Built) -> None:
    device, twin = (describe(built.bundle / side / "part_2_of_3.bin") for side in ("device", "x86"))
    assert (device["soc_model"], device["chip"], device["hexagon"]) == (57, "snapdragon-8-gen-3", "v75")
    assert device["qairt"].startswith("v2.51.0")
    assert device["shared_weight_bytes"] > 0 == twin["shared_weight_bytes"]
    assert "device only" in device["runs_on"]
    assert "emulator" in twin["runs_on"]
    graph = next(g for g in device["graphs"] if g["name"] == "token_ar1_cl256_2_of_3")
    assert {"name": "past_key_0_in", "dtype": "uint8", "shape": [2, 1, 16, 255]}.items() <= graph["inputs"][4].items()


def test_a_bundle_and_a_stage(built: Built) -> None:
    facts = describe(built.bundle)
    assert facts["kind"] == "bundle"
    assert facts["problems"] == []
    assert facts["gates"]["passed"] == facts["gates"]["of"] > 30
    assert facts["gates"]["not_seen"]
    assert [b["file"] for b in facts["binaries"]] == [
        f"{d}/part_{i}_of_3.bin" for d in ("device", "x86") for i in (1, 2, 3)]
    assert {t["executor"] for t in facts["targets"].values()} == {"onnx-cpu", "qnn-htp"}
    assert sum(facts["folders"].values()) == sum(p.stat().st_size for p in built.bundle.rglob("*") if p.is_file())
    stage = describe(built.artifact("quantize"))
    assert stage["kind"] == "stage quantize"
    assert stage["gates"]["of"] == 4
    assert describe(built.artifact("compile"))["binaries"]


def test_a_damaged_bundle_says_what_is_wrong(built: Built, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(built.bundle, bundle)
    cut = bundle / "device" / "part_1_of_3.bin"
    cut.write_bytes(cut.read_bytes()[:5000])
    (bundle / "model.data").unlink()
    problems = "\n".join(describe(bundle)["problems"])
    assert "model.data is missing" in problems
    assert "device/part_1_of_3.bin has 5,000 bytes, was written with" in problems
    assert f"cannot read {cut}" in problems
    assert len(describe(bundle)["binaries"]) == 5  # the others are still read
    (bundle / "manifest.json").write_text("{")
    with pytest.raises(EdgeForgeError, match=r"manifest\.json cannot be read"):
        describe(bundle)
    (bundle / "manifest.json").unlink()
    (bundle / "stage.json").write_text('{"stage": "bundle"}')
    with pytest.raises(EdgeForgeError, match=r"stage\.json is damaged"):
        describe(bundle)


def test_an_ordinary_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EdgeForgeError, match="neither a bundle nor a stage's folder"):
        describe(tmp_path)


def test_the_command_prints_both_ways(built: Built) -> None:
    runner = CliRunner()
    plain = runner.invoke(cli.app, ["inspect", str(built.bundle / "device" / "part_1_of_3.bin")])
    assert plain.exit_code == 0
    assert "chip: snapdragon-8-gen-3" in plain.output
    assert "input_ids" in plain.output
    raw: dict[str, Any] = json.loads(runner.invoke(cli.app, ["inspect", str(built.bundle), "--json"]).output)
    assert raw["kind"] == "bundle"


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_what_has_problems_is_exit_1(tmp_path: Path, flags: list[str]) -> None:
    """A script that asks has to be told; the description comes all the same."""
    with cache.whole(tmp_path / "stage") as work:
        (work / "model.onnx").write_text("weights")
        cache.stamp(work, {"key": "k", "stage": "adapt"})
    command = ["inspect", str(tmp_path / "stage"), *flags]
    assert CliRunner().invoke(cli.app, command).exit_code == 0
    (tmp_path / "stage" / "model.onnx").unlink()
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code == 1
    assert "model.onnx is missing" in done.output
