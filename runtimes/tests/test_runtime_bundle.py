"""Bad bundles: each gets a named error that says which file, graph or tensor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edgeforge_runtime.errors import ExecutorError, ManifestError, RunError
from edgeforge_runtime.manifest import FORMAT, Manifest
from edgeforge_runtime.session import Session
from tiny_models import Tiny


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return Tiny(quantized=True).write(tmp_path)


def edit(bundle: Path, change: Callable[[Any], object]) -> None:
    path = bundle / "manifest.json"
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


def refused(bundle: Path, message: str, kind: type[RunError] = ManifestError) -> None:
    with pytest.raises(kind, match=message):
        Session.open(bundle)


def graph(raw: Any, number: int) -> Any:
    return raw["targets"]["cpu"]["graphs"][number]


def tensor(raw: Any, number: int, side: str, name: str) -> Any:
    tensors = graph(raw, number)["parts"][0][side]
    return next(t for t in tensors if t["name"] == name)


def test_manifest_survives_a_round_trip(bundle: Path, tmp_path: Path) -> None:
    manifest = Manifest.load(bundle)
    other = tmp_path / "other"
    other.mkdir()
    manifest.save(other)
    assert Manifest.load(other) == manifest


def test_boundary_is_not_part_of_the_file(bundle: Path) -> None:
    manifest = Manifest.load(bundle)
    manifest.targets["cpu"].graphs[0].boundary()
    manifest.save(bundle)
    assert Manifest.load(bundle) == manifest


def test_no_manifest(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "holds no manifest.json: not an EdgeForge bundle")


def test_truncated_manifest(bundle: Path) -> None:
    path = bundle / "manifest.json"
    path.write_text(path.read_text()[:200])
    refused(bundle, "cannot be read")


@pytest.mark.parametrize("text", ['{"format": "edgeforge-bundle/9"}', "[]", "3"])
def test_wrong_format(bundle: Path, text: str) -> None:
    (bundle / "manifest.json").write_text(text)
    refused(bundle, f"this runtime reads '{FORMAT}'")


def test_damaged_manifest(bundle: Path) -> None:
    edit(bundle, lambda raw: raw["model"].pop("pad"))
    refused(bundle, "is damaged")


@pytest.mark.parametrize("file", ["model_0.onnx", "rope.npz"])
def test_missing_file(bundle: Path, file: str) -> None:
    (bundle / file).unlink()
    refused(bundle, file)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"garbage"])
def test_broken_rope(bundle: Path, content: bytes) -> None:
    (bundle / "rope.npz").write_bytes(content)
    refused(bundle, "rope.npz holds no rotary tables")


def test_rope_of_another_width(bundle: Path) -> None:
    np.savez(bundle / "rope.npz", cos=np.zeros((32, 3)), sin=np.zeros((32, 3)))
    refused(bundle, r"rotary table position_ids_cos is \(32, 3\)")


@pytest.mark.parametrize("held", [("cos", "sin"), ("cos", "sin", "swa_cos")])
def test_a_second_table_that_is_not_there(tmp_path: Path, held: tuple[str, ...]) -> None:
    """Without the refusal, all layers would turn by the first."""
    bundle = Tiny(quantized=True, swa=True).write(tmp_path)
    with np.load(bundle / "rope.npz") as tables:
        np.savez(bundle / "rope.npz", **{name: tables[name] for name in held})
    refused(bundle, r"the graphs take swa_position_ids_(cos|sin), and there is no rotary table swa_(cos|sin)")


def test_a_second_table_of_another_width(tmp_path: Path) -> None:
    bundle = Tiny(swa=True).write(tmp_path)
    with np.load(bundle / "rope.npz") as tables:
        np.savez(bundle / "rope.npz", **{**tables, "swa_sin": tables["swa_sin"][:, :3]})
    refused(bundle, r"rotary table swa_position_ids_sin is \(32, 3\), not \[positions, 4\]")


def test_a_shorter_second_table_shortens_the_context(tmp_path: Path) -> None:
    bundle = Tiny(swa=True).write(tmp_path)
    with np.load(bundle / "rope.npz") as tables:
        np.savez(bundle / "rope.npz", **{**tables, "swa_cos": tables["swa_cos"][:20]})
    with Session.open(bundle) as session:
        assert session.context == 20


def test_one_array_is_no_file_of_tables(bundle: Path) -> None:
    with (bundle / "rope.npz").open("wb") as file:
        np.save(file, np.zeros((32, 4)))
    refused(bundle, "rope.npz holds no rotary tables")


def test_broken_graph_file(bundle: Path) -> None:
    (bundle / "model_0.onnx").write_bytes(b"not onnx")
    refused(bundle, r"model_0\.onnx does not load", ExecutorError)


def test_unknown_target(bundle: Path) -> None:
    with pytest.raises(ManifestError, match="has no target 'htp'; it has cpu"):
        Session.open(bundle, "htp")


def test_unknown_executor(bundle: Path) -> None:
    edit(bundle, lambda raw: raw["targets"]["cpu"].update(executor="tpu"))
    refused(bundle, "no executor 'tpu'")


def test_no_graphs(bundle: Path) -> None:
    edit(bundle, lambda raw: raw["targets"]["cpu"].update(graphs=[]))
    refused(bundle, "has no graphs")


@pytest.mark.parametrize(
    ("side", "name"),
    [
        ("inputs", "attention_mask"),
        ("inputs", "input_ids"),
        ("outputs", "logits"),
        ("outputs", "past_key_1_out"),
    ],
)
def test_missing_tensor(bundle: Path, side: str, name: str) -> None:
    def drop(raw: Any) -> None:
        part = graph(raw, 1)["parts"][0]
        part[side] = [t for t in part[side] if t["name"] != name]

    edit(bundle, drop)
    refused(bundle, f"graph ar1_cl32 has no {name}")


@pytest.mark.parametrize(
    ("number", "side", "name", "change", "message"),
    [
        (1, "inputs", "past_key_0_in", {"scale": 0.5}, "can have only one encoding"),
        (1, "outputs", "past_value_1_out", {"zero_point": 127}, "can have only one encoding"),
        (0, "inputs", "past_key_0_in", {"shape": [2, 1, 8, 31]}, "should have 24 and 8 tokens along axis 3"),
        (0, "inputs", "attention_mask", {"shape": [1, 1, 8, 30]}, "attention_mask is"),
        (0, "outputs", "logits", {"shape": [1, 3, 96]}, "neither 1 nor 8 rows"),
        (0, "outputs", "logits", {"shape": [1, 8, 80]}, "lack ids of 90"),
        (0, "outputs", "logits", {"scale": None}, "codes without a scale"),
        (0, "outputs", "logits", {"scale": 0.0}, "with scale 0.0"),
        (0, "outputs", "logits", {"dtype": "uint5"}, "unknown dtype 'uint5'"),
    ],
)
def test_tensors_that_do_not_fit(
    bundle: Path, number: int, side: str, name: str, change: dict[str, Any], message: str
) -> None:
    edit(bundle, lambda raw: tensor(raw, number, side, name).update(change))
    refused(bundle, message)


def test_one_cache_has_one_encoding_over_all_graphs(bundle: Path) -> None:
    """Each graph for itself is sound."""

    def other_scale(raw: Any) -> None:
        tensor(raw, 1, "inputs", "past_key_0_in")["scale"] = 0.5
        tensor(raw, 1, "outputs", "past_key_0_out")["scale"] = 0.5

    edit(bundle, other_scale)
    refused(bundle, "past_key_0_in is encoded as .* can have only one encoding")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw["model"].update(pad=float("inf")), "Model.pad is inf, not int"),
        (lambda raw: raw["model"].update(vocab_size=True), "Model.vocab_size is True, not int"),
        (lambda raw: raw["model"].update(eos=["2"]), "Model.eos is"),
        (lambda raw: raw["model"].update(more=1), "Model has no key 'more'"),
        (lambda raw: raw["model"].update(key_axis=4), "tokens not along axis 4"),
        (lambda raw: raw["model"].update(pad=1 << 31), "padding id 2147483648"),
        (lambda raw: raw.update(targets=0.5), "0.5 stands where the targets should"),
        (lambda raw: raw.update(rope="../rope.npz"), "no path within the bundle"),
        (lambda raw: raw.update(rope="x" * 300), "no path within the bundle"),
        (lambda raw: raw.update(stamps={"a": 1}), "Manifest.stamps"),
        (lambda raw: raw.update(format="x" * 100_000), r"x\.\.\.; this runtime"),
        (lambda raw: raw["targets"]["cpu"].update(graphs={}), "no list of graphs"),
        (lambda raw: graph(raw, 0).update(ar={}), "Graph.ar is {}, not int"),
        (lambda raw: graph(raw, 0).update(ar=0), "not within the context"),
        (lambda raw: graph(raw, 0)["parts"][0].update(file="/etc/passwd"), "no path within the bundle"),
        (lambda raw: graph(raw, 0)["parts"][0].pop("graph"), "Part lacks graph"),
        (lambda raw: tensor(raw, 0, "inputs", "input_ids").update(name=["x"]), "Tensor.name is"),
        (lambda raw: tensor(raw, 0, "inputs", "input_ids").update(dtype="float32"), "token ids and slots are integers"),
        (lambda raw: tensor(raw, 0, "inputs", "input_ids").update(shape=[1 << 30, 1 << 30]), "has the shape"),
        (lambda raw: tensor(raw, 0, "inputs", "input_ids").update(shape=[1, -8]), "has the shape"),
        (lambda raw: tensor(raw, 0, "inputs", "attention_mask").update(zero_point=65536), "zero point 65536"),
        (lambda raw: tensor(raw, 0, "inputs", "position_ids_cos").update(shape=[1, 3, 8, 4]), "position_ids_cos is"),
        (lambda raw: tensor(raw, 0, "inputs", "past_key_0_in").update(shape=[24]), "do not have 4 axes"),
        (lambda raw: tensor(raw, 0, "inputs", "past_key_0_in").update(shape=[3, 1, 8, 24]), "other heads"),
    ],
)
def test_damaged_values_are_named(bundle: Path, change: Callable[[Any], Any], message: str) -> None:
    edit(bundle, change)
    refused(bundle, message)


def test_rope_of_another_width_in_the_second_graph(bundle: Path) -> None:
    edit(bundle, lambda raw: [tensor(raw, 1, "inputs", n).update(shape=[1, 1, 1, 2]) for n in (
        "position_ids_cos", "position_ids_sin")])
    refused(bundle, r"not \[positions, 2\]")


def test_a_manifest_nested_without_end(bundle: Path) -> None:
    (bundle / "manifest.json").write_text("[" * 100_000)
    refused(bundle, "nested too deeply")


def test_a_cache_that_no_memory_holds(bundle: Path) -> None:
    """Every shape agrees with every other; only there is not that much memory."""
    huge = 1 << 36

    def widen(raw: Any) -> None:
        for number in (0, 1):
            for side, name in (("inputs", "past_key_0_in"), ("outputs", "past_key_0_out")):
                tensor(raw, number, side, name)["shape"][0] = huge

    edit(bundle, widen)
    with pytest.raises(RunError, match="no memory for past_key_0_in|has the shape"):
        Session.open(bundle)


def test_a_message_ends() -> None:
    assert len(str(RunError("x" * 100_000))) < 9000
    assert str(RunError("short")) == "short"
