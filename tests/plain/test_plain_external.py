"""Weights beside the file, in every form that people have them (C21, C22)."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeforge.errors import CheckpointError
from edgeforge.graph import enter, store
from edgeforge.graph.optimize_plain import optimize
from edgeforge.onnx_source import OnnxSource
from edgeforge.targets import HTP

WEIGHTS = {"first.weight": np.arange(64, dtype=np.float32).reshape(8, 8) / 64,
           "second.weight": np.arange(64, 0, -1, dtype=np.float32).reshape(8, 8) / 64}


def save(folder: Path, name: str = "f.onnx", location: str = "weights.bin", one_file: bool = True) -> Path:
    """x @ first @ second, weights outside the file."""
    nodes = [helper.make_node("MatMul", [a, w], [b]) for a, w, b in zip("xa", WEIGHTS, "ay", strict=True)]
    values = [helper.make_tensor_value_info(n, 1, [1, 8]) for n in "xy"]
    tensors = [numpy_helper.from_array(a, n) for n, a in WEIGHTS.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / name, save_as_external_data=True, all_tensors_to_one_file=one_file, location=location,
              size_threshold=0)
    return folder / name


def rewrite(path: Path, tensor: str = "second.weight", **entries: str | None) -> Path:
    """Other words in one tensor's reference; None removes a word."""
    model = onnx.load(path, load_external_data=False)
    for found in model.graph.initializer:
        if found.name == tensor:
            have = {e.key: e.value for e in found.external_data} | entries
            del found.external_data[:]
            for key, value in have.items():
                if value is not None:
                    found.external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())
    return path


def weights(path: Path) -> dict[str, np.ndarray]:
    graph = enter.read(path).graph
    return {n: v.const_value.numpy() for n, v in graph.initializers.items() if v.const_value is not None}


def good(path: Path) -> None:
    """The weights are read, and survive being saved as an artifact."""
    for name, array in weights(path).items():
        np.testing.assert_array_equal(array, WEIGHTS[name])
    folder = path.parent / "artifact"
    folder.mkdir()
    store.save(optimize(enter.read(path), HTP), folder)
    assert set(WEIGHTS) <= set(store.load(folder).graph.initializers)


def refused(path: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        enter.read(path)
    assert str(path) in caught.value.message
    return caught.value


@pytest.mark.parametrize("location", ["weights.bin", "f.onnx_data", "f.onnx.data", "f.data",
                                      "1b4e28ba-2fa1-11d2-883f-0016d3cca427", "Größe 1.bin"])
def test_one_file_of_any_name(tmp_path: Path, location: str) -> None:
    good(save(tmp_path, location=location))


def test_a_file_for_each_tensor_and_a_folder_below(tmp_path: Path) -> None:
    good(save(tmp_path / "each", one_file=False))
    path = save(tmp_path / "below")
    (path.parent / "sub").mkdir()
    (path.parent / "weights.bin").rename(path.parent / "sub" / "weights.bin")
    for name in WEIGHTS:
        rewrite(path, name, location="sub/weights.bin")
    good(path)


def test_offset_and_length_may_be_left_out(tmp_path: Path) -> None:
    path = save(tmp_path, one_file=False)
    for name in WEIGHTS:
        rewrite(path, name, offset=None, length=None)
    good(path)


def test_a_renamed_data_file_is_named_with_the_weight_that_wants_it(tmp_path: Path) -> None:
    """Model and data renamed together, as a browser does: onnxruntime says only that a path does not exist."""
    path = save(tmp_path)
    shutil.move(path, tmp_path / "f (1).onnx")
    shutil.move(tmp_path / "weights.bin", tmp_path / "weights (1).bin")
    error = refused(tmp_path / "f (1).onnx")
    assert "weights.bin is missing; first.weight" in error.message
    assert "under the name" in error.hint


def test_the_huggingface_caches_links_are_followed(tmp_path: Path) -> None:
    """snapshots/<rev>/onnx/model.onnx -> ../../../blobs/<hash>: onnx.load refuses it, onnxruntime runs it."""
    repository = tmp_path / "models--me--net"
    path = save(repository / "snapshots" / "abc" / "onnx")
    blobs = repository / "blobs"
    blobs.mkdir()
    for file in (path, path.parent / "weights.bin"):
        file.rename(blobs / f"hash-{file.name}")
        file.symlink_to(os.path.relpath(blobs / f"hash-{file.name}", file.parent))
    with pytest.raises(Exception, match="symbolic link"):
        onnx.load(path)
    ort.InferenceSession(str(path))
    good(path)


def test_a_link_within_the_folder_is_followed_and_one_out_of_it_is_not(tmp_path: Path) -> None:
    path = save(tmp_path / "model")
    data = path.parent / "weights.bin"
    data.rename(path.parent / "real.bin")
    data.symlink_to("real.bin")
    good(path)
    (path.parent / "real.bin").rename(tmp_path / "outside.bin")
    data.unlink()
    data.symlink_to("../outside.bin")
    error = refused(path)
    assert "outside the model's folder" in error.message
    assert "first.weight" in error.message


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/hostname", "sub/../../weights.bin", "..\\weights.bin",
                                      "C:\\weights.bin", "", "weights.bin\0.txt"])
def test_a_location_elsewhere_is_refused(tmp_path: Path, location: str) -> None:
    path = save(tmp_path / "model")
    shutil.copy(path.parent / "weights.bin", tmp_path)
    error = refused(rewrite(path, location=location))
    assert "second.weight" in error.message
    assert "outside the model's folder" in error.message


@pytest.mark.parametrize(("entries", "said"), [
    ({"offset": "300"}, "which has 512"), ({"offset": "-4"}, "wants 256 bytes"), ({"length": "255"}, "wants 256 bytes"),
    ({"length": "99999999"}, "wants 256 bytes"), ({"offset": "one"}, "is no number"),
    ({"offset": "9223372036854775807"}, "which has 512")])
def test_bytes_that_are_not_there_are_refused(tmp_path: Path, entries: dict[str, str], said: str) -> None:
    error = refused(rewrite(save(tmp_path), **entries))
    assert said in error.message
    assert "second.weight" in error.message


def test_a_truncated_data_file_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path)
    with (tmp_path / "weights.bin").open("r+b") as stream:
        stream.truncate(500)
    error = refused(path)
    assert "second.weight wants bytes 256 to 512" in error.message
    assert "truncated" in error.hint


def test_a_constant_nodes_tensor_may_lie_outside_too(tmp_path: Path) -> None:
    path = save(tmp_path)
    model = onnx.load(path, load_external_data=False)
    moved = model.graph.initializer.pop()
    model.graph.node.insert(0, helper.make_node("Constant", [], [moved.name], value=moved))
    path.write_bytes(model.SerializeToString())
    np.testing.assert_array_equal(weights(path)["second.weight"], WEIGHTS["second.weight"])
    (tmp_path / "weights.bin").unlink()
    assert "is missing" in refused(path).message


LARGE = r"""
import re, sys
from pathlib import Path
from edgeforge.graph import edit, enter
from edgeforge.graph.optimize_plain import optimize
from edgeforge.targets import HTP
model = optimize(enter.read(Path(sys.argv[1])), HTP)
print(edit.dims(model.graph.outputs[0]), [n.op_type for n in model.graph])
print(int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) // 1024)
"""
"""ends in its own peak, MiB: getrusage's would start from that of the test process"""


def test_a_weight_beyond_2_gb_is_never_loaded(tmp_path: Path) -> None:
    """C22: [20000, 30000] float32, 2.4 GB of holes: entry, shape inference and every pass, in little memory."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[20000, 30000],
                         data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.data")
    with (tmp_path / "w.data").open("wb") as stream:
        stream.truncate(20000 * 30000 * 4)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [1, 20000])],
                              [helper.make_tensor_value_info("y", 1, None)], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (tmp_path / "f.onnx").write_bytes(model.SerializeToString())
    done = subprocess.run([sys.executable, "-c", LARGE, str(tmp_path / "f.onnx")], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    shape, megabytes = done.stdout.splitlines()
    assert shape == "[1, 30000] ['MatMul', 'Relu']"
    assert int(megabytes) < 1000


def test_weights_are_hashed_once_and_again_when_they_change(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path)
    weights = tmp_path / "weights.bin"
    samples, memory = tmp_path / "samples.npz", tmp_path / "memory.json"
    samples.write_bytes(b"samples")
    source = OnnxSource(path, samples, ())
    before = source.fingerprint(memory)
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("read again"))
        assert source.fingerprint(memory) == before
    for file in (weights, samples):
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        assert source.fingerprint(memory) not in (before, None)
        before = source.fingerprint(memory)
