"""Bad recipes and bad samples of a plain graph: exit code, words, and nothing left behind."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import plain_models as models
import pytest
from builds import cli

from edgeforge import recipe
from edgeforge.calibrate.samples import Input, load
from edgeforge.errors import RecipeError

IMAGE = [Input("image", "float32", (1, 3, 4, 4))]
IDS = [Input("ids", "int32", (1, 4))]


def small(folder: Path) -> Path:
    text = ('<ir_version: 10, opset_import: ["" : 21]> '
            "g (float[1,3,4,4] image) => (float[1,3,4,4] y) { y = Relu(image) }")
    path = folder / "f.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return path


def refused(folder: Path, arrays: dict[str, Any], inputs: list[Input]) -> RecipeError:
    np.savez(folder / "s.npz", **arrays)
    with pytest.raises(RecipeError) as caught:
        load(folder / "s.npz", inputs)
    assert str(folder / "s.npz") in caught.value.message
    return caught.value


@pytest.mark.parametrize(("arrays", "said"), [
    ({"picture": np.ones((2, 3, 4, 4), np.float32)}, "no array for 'image'; 'picture' is no input"),
    ({"image": np.ones((2, 3, 4, 5), np.float32)}, "a sample is [3, 4, 5], and the graph takes [1, 3, 4, 4]"),
    ({"image": np.ones((2, 3, 4, 4), np.uint8)}, "is uint8, and the graph takes float32"),
    ({"image": np.zeros((0, 3, 4, 4), np.float32)}, "has no samples"), ({"image": np.float32(1)}, "has no samples"),
    ({"image": np.full((2, 3, 4, 4), np.nan, np.float32)}, "is not finite in sample 0"),
    ({"image": np.full((2, 3, 4, 4), 1e300)}, "is not finite in sample 0"),
    ({"image": np.array([{}, {}])}, "pickled Python objects"), ({}, "no array for 'image'"),
    ({"image": np.zeros((2, 3, 4, 4), np.float32)}, "'image' is 0 throughout: no range can be learnt"),
    ({"image": np.full((1, 3, 4, 4), 0.5, np.float32)}, "'image' is 0.5 throughout")])
def test_samples_that_do_not_fit_are_named(tmp_path: Path, arrays: dict[str, Any], said: str) -> None:
    assert said in refused(tmp_path, arrays, IMAGE).message


def test_numbers_that_do_not_fit_the_type_and_unequal_counts_are_named(tmp_path: Path) -> None:
    assert "do not fit int32" in refused(tmp_path, {"ids": np.full((2, 4), 1 << 40)}, IDS).message
    both = {"ids": np.ones((3, 4), np.int64), "image": np.ones((2, 3, 4, 4), np.float32)}
    assert "different numbers of samples" in refused(tmp_path, both, IMAGE + IDS).message


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04" + b"\0" * 50, pickle.dumps({"image": 1})])
def test_what_is_no_npz_is_called_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s.npz").write_bytes(content)
    with pytest.raises(RecipeError, match="is not an .npz file") as caught:
        load(tmp_path / "s.npz", IMAGE)
    assert "allow_pickle" not in str(caught.value), "numpy's own advice"


@pytest.mark.parametrize(("count", "calibrated", "measured"), [(1, 1, 1), (2, 1, 1), (7, 6, 1), (16, 12, 4)])
def test_the_last_quarter_is_kept_for_the_gates(tmp_path: Path, count: int, calibrated: int, measured: int) -> None:
    images = np.arange(count)[:, None, None, None] + np.linspace(-1, 0, 48).reshape(3, 4, 4)
    np.savez(tmp_path / "s.npz", image=images)
    found = load(tmp_path / "s.npz", IMAGE)
    assert (len(found.calibration), len(found.evaluation)) == (calibrated, measured)
    assert found.evaluation[-1]["image"].shape == (1, 3, 4, 4)
    assert float(found.evaluation[-1]["image"].max()) == count - 1
    assert found.first_evaluated == count - measured
    assert found.fitted == (count == 1)


def test_repeats_and_constants_among_others(tmp_path: Path) -> None:
    """Two of the four samples that are kept stand among the twelve others; a mask of ones is as it should be."""
    ids = np.arange(64).reshape(16, 4)
    ids[12], ids[15] = ids[0], ids[7]
    np.savez(tmp_path / "s.npz", ids=ids, mask=np.ones((16, 4), np.int64))
    found = load(tmp_path / "s.npz", [*IDS, Input("mask", "int64", (1, 4))])
    assert found.fitted == 2
    np.savez(tmp_path / "s.npz", step=np.ones(1, np.float32))
    assert load(tmp_path / "s.npz", [Input("step", "float32", (1,))]).fitted == 1, "one number is no constant"


@pytest.mark.parametrize(("more", "said"), [
    ("quantize: {kv: 8}", "quantize.kv: only for language models"),
    ("quantize: {head: 8}", "quantize.head: only for language models"),
    ("quantize: {importance: false}", "quantize.importance: only for language models"),
    ("calibrate: {windows: 4}\nsplit: {part_bytes: 5000}", "split.part_bytes: only for language models"),
    ("gates: {quantize_kl: 1}", "gates.quantize_kl: only for language models"),
])
def test_keys_of_language_models_are_refused_by_name(tmp_path: Path, more: str, said: str) -> None:
    path = models.recipe(tmp_path, small(tmp_path), {"image": np.ones((2, 3, 4, 4), np.float32)}, more)
    with pytest.raises(RecipeError) as caught:
        recipe.load(path)
    assert said in str(caught.value)


@pytest.mark.parametrize(("quantize", "key"), [
    ("{weights: 4}", "weights"), ('{exceptions: {"*": 4}}', "exceptions"), ("{exceptions: {dw: 4}}", "exceptions"),
    ('{weights: 4, exceptions: {"*": 8, dw: 4}}', "exceptions"), ('{weights: 4, exceptions: {"*": 8}}', "")])
def test_four_bits_are_refused_however_they_are_asked_for(tmp_path: Path, quantize: str, key: str) -> None:
    path = models.recipe(tmp_path, small(tmp_path), {"image": np.ones((2, 3, 4, 4), np.float32)},
                         f"quantize: {quantize}")
    if key:
        with pytest.raises(RecipeError, match=f"quantize.{key}: 4 bits cost a plain graph"):
            recipe.load(path)
        path.write_text(path.read_text() + "gates: {quantize_db: 10}\n")
    assert recipe.load(path).model


def test_wrong_keys_of_the_model_are_named(tmp_path: Path) -> None:
    path = models.recipe(tmp_path, small(tmp_path), {})
    text = path.read_text()
    path.write_text(text.replace("calibration:", "calibratoin:"))
    with pytest.raises(RecipeError) as caught:
        recipe.load(path)
    assert "model.calibratoin: unknown key; did you mean 'calibration'?" in str(caught.value)
    assert "model.calibration: missing" in str(caught.value)


def test_the_command_line_says_what_is_wrong_and_leaves_nothing(tmp_path: Path) -> None:
    onnx_file = small(tmp_path)
    path = models.recipe(tmp_path, onnx_file, {"image": np.full((2, 3, 4, 4), np.inf, np.float32)})
    done = cli("build", path)
    assert done.returncode == 2
    assert "not finite" in done.stderr
    np.savez(tmp_path / "bundle.npz", image=np.ones((2, 3, 4, 4), np.float32))
    onnx_file.write_bytes(onnx_file.read_bytes()[:60])
    done = cli("build", path)
    assert done.returncode == 1
    assert "f.onnx" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
