"""The paths of a recipe: each mistake is the recipe's (exit 2), with its line, before anything is read or made."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgeforge import cache, check, pipeline, recipe
from edgeforge.build import STAMP
from edgeforge.errors import RecipeError

GRAPH = ('<ir_version: 10, opset_import: ["" : 21]> g (float[1,4] x) => (float[1,4] y) { y = Relu(x) }')


def written(folder: Path, model: str = "m", out: str = "out", more: str = "") -> recipe.Recipe:
    """A recipe over a model's folder m, a graph g.onnx, samples s.npz and a finished bundle made/tiny, all there."""
    (folder / "m").mkdir(exist_ok=True)
    (folder / "m" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "g.onnx").write_bytes(onnx.parser.parse_model(GRAPH).SerializeToString())
    np.savez(folder / "s.npz", x=np.ones((2, 4), np.float32))
    if not (folder / "made").exists():
        with cache.whole(folder / "made" / "tiny") as work:
            cache.stamp(work, {"key": "k"})
    path = folder / "r.yaml"
    path.write_text(f"model: {model}\nout: {out}\ntarget: {{chip: snapdragon-8-gen-3}}\n{more}", encoding="utf-8")
    return recipe.load(path)


GRAPHS = "{{onnx: {onnx}, calibration: {samples}}}"


@pytest.mark.parametrize(("change", "said"), [
    ({"model": "./none"}, "r.yaml:1: model: there is no {0}/none"),
    ({"model": GRAPHS.format(onnx="no.onnx", samples="s.npz")}, "r.yaml:1: model.onnx: there is no file {0}/no.onnx"),
    ({"model": GRAPHS.format(onnx="m", samples="s.npz")}, "r.yaml:1: model.onnx: {0}/m is a folder, not a file"),
    ({"model": GRAPHS.format(onnx="g.onnx", samples="no.npz")}, "r.yaml:1: model.calibration: there is no file"),
    ({"model": GRAPHS.format(onnx="g.onnx", samples="g.onnx")}, "r.yaml:1: model.calibration: {0}/g.onnx is not an"),
    ({"out": "g.onnx/x/y"}, "r.yaml:2: out: {0}/g.onnx is a file: {0}/g.onnx/x/y cannot lie in it"),
    ({"out": "m"}, "r.yaml:2: out: {0}/m exists and is not an EdgeForge bundle"),
    ({"out": "m/out"}, "r.yaml:2: out: {0}/m/out lies in the model's own folder"),
    ({"out": "made/tiny/sub"}, "r.yaml:2: out: {0}/made/tiny/sub lies in {0}/made/tiny, which a build made"),
    ({"out": "made/tiny/a/b/c"}, "r.yaml:2: out: {0}/made/tiny/a/b/c lies in {0}/made/tiny, which a build made"),
])
def test_a_wrong_path_is_the_recipes_with_its_line(tmp_path: Path, change: dict[str, str], said: str) -> None:
    made = written(tmp_path, **change)
    before = sorted(p for p in tmp_path.rglob("*"))
    with pytest.raises(RecipeError) as caught:
        pipeline.build(made, lambda event: None)
    assert str(caught.value).startswith(f"{tmp_path}/{said.format(tmp_path)}")
    report = check.examine(made)
    assert report.exit_code == 2
    assert said.format(tmp_path) in "\n".join(map(str, report.findings))
    assert sorted(p for p in tmp_path.rglob("*")) == before


def test_a_text_that_is_a_folder_is_called_so(tmp_path: Path) -> None:
    found = check.examine(written(tmp_path, more="calibrate: {text: m}\n")).findings
    assert f"r.yaml:4: calibrate.text: {tmp_path}/m is a folder, not a file" in "\n".join(map(str, found))


@pytest.mark.parametrize("out", ["out", "made/tiny", "made/other", "new/deep/folder", "tiny"])
def test_good_places_are_let_through(tmp_path: Path, out: str) -> None:
    check.require_places(written(tmp_path, out=out))


def test_all_wrong_paths_at_once(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="2 things stand against") as caught:
        check.require_places(written(tmp_path, model="./none", out="g.onnx/x"))
    assert "r.yaml:1: model" in caught.value.message
    assert "r.yaml:2: out" in caught.value.message


def test_paths_read_as_a_person_would_write_them(tmp_path: Path) -> None:
    deep = tmp_path / "r"
    deep.mkdir()
    made = written(deep, model="../r/./m/../m", more="calibrate: {text: ../r/m/t.txt}\n")
    assert made.model == deep / "m"
    assert made.calibrate.text == deep / "m" / "t.txt"
    (tmp_path / "link").symlink_to(deep / "m")
    assert written(deep, model="../link/../m").model == deep / ".." / "link" / ".." / "m", "a link's parent is another"


def test_a_language_models_keys_beside_a_graph_are_named_with_their_lines(tmp_path: Path) -> None:
    more = "quantize:\n  weights: 8\n  kv: 8\ngates:\n  split_db: 60\n"
    with pytest.raises(RecipeError) as caught:
        written(tmp_path, model=GRAPHS.format(onnx="g.onnx", samples="s.npz"), more=more)
    lines = caught.value.message.splitlines()
    assert lines[1].strip().startswith(f"{tmp_path}/r.yaml:6: quantize.kv: only for language models")
    assert lines[2].strip().startswith(f"{tmp_path}/r.yaml:8: gates.split_db: only for language models")
    assert "recipe: " not in "".join(lines[1:])


def test_a_stamp_is_what_tells_a_bundle(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "made" / "tiny" / STAMP).unlink()
    check.require_places(written(tmp_path, out="made/tiny/sub"))
