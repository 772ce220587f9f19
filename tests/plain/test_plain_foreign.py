"""Another tool's grids on a plain graph: what the file names lies on them, and the rest is ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plain_models as models
import pytest
from builds import cli

from edgeforge import check, encodings, pipeline, recipe, source
from edgeforge.encodings import Table, equal
from edgeforge.errors import RecipeError
from edgeforge.gates import Check
from edgeforge.graph import store
from edgeforge.quantize.products import products
from edgeforge.stages.plan import GRAPH_STAGES

OPTIONS = "quantize: {{scales: minmax, rounding: nearest, refine: 0, correction: 0{more}}}"
Stages = dict[str, Path]
Entry = dict[str, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    """A CNN's stages up to export, weights rounded to the nearest of min-max grids, and its recipe."""
    folder = tmp_path_factory.mktemp("foreign")
    onnx = models.export(models.cnn(), models.images(8), folder / "cnn.onnx")
    places = {"recipe": models.recipe(folder, onnx, models.images(8), OPTIONS.format(more=""))}
    for stage in GRAPH_STAGES[:4]:
        _stage(places, places["recipe"], stage.name, folder / stage.name)
    return places


def _stage(places: Stages, path: Path, name: str, out: Path) -> dict[str, Check]:
    wished = recipe.load(path)
    job, stage = pipeline.start(wished, source.open_source(wished.model)), {s.name: s for s in GRAPH_STAGES}[name]
    out.mkdir()
    places[name] = out
    return {c.name: c for c in stage.run(job, {n: places[n] for n in stage.needs}, out)}


def _with(made: Stages, folder: Path, change: Callable[[list[Entry]], list[Entry]] = lambda rows: rows,
          version: str = "1.0.0", more: str = "") -> Path:
    """A recipe that takes the exported encodings as change leaves them."""
    raw = json.loads((made["export"] / ("model.encodings" if version == "1.0.0" else "model.2.0.0.encodings")
                      ).read_text())
    for section in [key for key, value in raw.items() if isinstance(value, list)]:
        raw[section] = change(raw[section])
    (folder / "theirs.encodings").write_text(json.dumps(raw))
    path = folder / "foreign.yaml"
    text = made["recipe"].read_text()
    text = text.replace("calibration: bundle.npz", f"calibration: {made['recipe'].parent / 'bundle.npz'}")
    path.write_text(text.replace("correction: 0", f"correction: 0, encodings: theirs.encodings{more}"))
    return path


def _quantized(made: Stages, path: Path) -> tuple[Table, dict[str, Check], Path]:
    out = path.parent / "quantize"
    checks = _stage(dict(made), path, "quantize", out)
    return Table.load(out / encodings.FILE), checks, out


def _codes(folder: Path) -> dict[str, bytes]:
    return {str(v.name): v.const_value.tobytes() for v in store.load(folder).graph.initializers.values()
            if v.const_value is not None}


def _differ(a: Table, b: Table) -> set[str]:
    return {n for n in {*a, *b} if n not in a or n not in b or not equal(a[n], b[n])}


@pytest.mark.parametrize("version", ["1.0.0", "2.0.0"])
def test_our_own_export_comes_back_as_the_same_table_and_the_same_codes(
        made: Stages, version: str, tmp_path: Path) -> None:
    table, checks, out = _quantized(made, _with(made, tmp_path, version=version))
    assert _differ(table, Table.load(made["quantize"] / encodings.FILE)) == set()
    assert _codes(out) == _codes(made["quantize"])
    told = checks["quantize: foreign encodings"]
    assert (told.value, told.unit, told.note) == (len(table), "values", "")
    assert checks["quantize: weights fitted"].value == 0
    assert checks["quantize: logits"].value > 40


def test_what_the_file_leaves_out_gets_ours(made: Stages, tmp_path: Path) -> None:
    """Half of the weights, and of values that share a grid only one."""
    graph = store.load(made["optimize"]).graph
    names = [p.name for p in products(graph)]
    keep = {*names[::2], str(graph.inputs[0].name)}

    def change(rows: list[Entry]) -> list[Entry]:
        for row in rows:
            row["scale"] = [1.5 * s for s in row["scale"]]
        return [row for row in rows if row["name"] in keep]

    table, checks, _ = _quantized(made, _with(made, tmp_path, change))
    ours = Table.load(made["quantize"] / encodings.FILE)
    assert keep <= _differ(table, ours)
    assert all((table[n].scale == (1.5 * ours[n].scale.astype(float)).astype("float32")).all() for n in keep)
    assert set(names[1::2]) & _differ(table, ours) == set()
    assert checks["quantize: weights fitted"].value == len(names[1::2])
    assert checks["quantize: foreign encodings"].value == len(keep)


def test_values_that_share_a_grid_follow_the_one_that_is_named(made: Stages, tmp_path: Path) -> None:
    ours = Table.load(made["quantize"] / encodings.FILE)
    pooled = next(n for n in store.load(made["optimize"]).graph if n.op_type == "MaxPool")
    before, after = str(pooled.inputs[0].name), str(pooled.outputs[0].name)  # type: ignore[union-attr]

    def change(rows: list[Entry]) -> list[Entry]:
        return [row | {"scale": [2 * row["scale"][0]]} for row in rows if row["name"] == after]

    table, checks, _ = _quantized(made, _with(made, tmp_path, change))
    assert _differ(table, ours) == {before, after}
    assert table[before].scale == table[after].scale == 2 * ours[before].scale
    assert checks["quantize: foreign encodings"].note == "1 more share a grid with one of them"


def test_a_step_that_the_multiplier_cannot_hold_is_raised_and_told(made: Stages, tmp_path: Path) -> None:
    """C32, as a file of another tool has it for a channel of zeros."""
    name = next(p.name for p in products(store.load(made["optimize"]).graph))

    def change(rows: list[Entry]) -> list[Entry]:
        return [row | {"scale": [1e-12, *row["scale"][1:]]} for row in rows if row["name"] == name]

    table, checks, _ = _quantized(made, _with(made, tmp_path, change))
    assert table[name].scale[0] > 1e-9
    assert checks["quantize: foreign encodings"].note == (
        f"steps too small for the hardware's multiplier or a bias were raised in {name}")


def _renamed(row: Entry) -> Entry:
    return row | {"name": row["name"] + "_q"} if row["name"] == "image" else row


@pytest.mark.parametrize(("change", "said"), [
    (lambda rows: [_renamed(r) for r in rows],
     r"the graph has no value for 1 of its encodings:\s+image_q \(the graph has"),
    (lambda rows: [r | {"bw": 8, "offset": [-1]} if r["name"] == "image" else r for r in rows],
     "image: 8 bits; an activation has 16 here"),
    (lambda rows: [r | {"scale": [0]} if r["name"] == "image" else r for r in rows],
     "the encoding of image: a scale is not finite and above 0"),
])
def test_what_does_not_belong_is_the_recipes_with_its_line(
        made: Stages, change: Callable[[list[Entry]], list[Entry]], said: str, tmp_path: Path) -> None:
    path = _with(made, tmp_path, change)
    with pytest.raises(RecipeError, match=said) as caught:
        _quantized(made, path)
    assert caught.value.message.startswith(f"{path}:4: quantize.encodings: ")


def test_a_missing_or_damaged_file_and_another_version_before_any_work(made: Stages, tmp_path: Path) -> None:
    path, file = _with(made, tmp_path), tmp_path / "theirs.encodings"
    raw = json.loads(file.read_text())
    for said, text in (("version '0.6.1'; known: 1.0.0, 2.0.0, 2.1.0", json.dumps(raw | {"version": "0.6.1"})),
                       ("holds no AIMET encodings", file.read_text()[:-50]), ("there is no file", None)):
        if text is None:
            file.unlink()
        else:
            file.write_text(text)
        report = check.examine(recipe.load(path))
        assert report.exit_code == 2
        with pytest.raises(RecipeError) as caught:
            pipeline.build(recipe.load(path), lambda event: None)
        for told in ("\n".join(map(str, report.findings)), caught.value.message):
            assert f"{path}:4: quantize.encodings: " in told
            assert said in told
    done = cli("build", path)
    assert done.returncode == 2
    assert "there is no file" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (made["recipe"].parent / "out").exists()
