"""A graph with an op that no search can pass: weights behind it get their largest value's grid, and the report why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import plain_models
import pytest
from onnx import helper, numpy_helper

from edgeforge import pipeline, recipe, source
from edgeforge.errors import RecipeError
from edgeforge.gates import Check
from edgeforge.stages.plan import GRAPH_STAGES

RNG = np.random.default_rng(2)


def graph(path: Path, resize_first: bool) -> Path:
    """Two convolutions, with a Resize that torch has no word for between them or behind both."""
    arrays = {"w1": RNG.normal(size=(4, 3, 3, 3)), "w2": RNG.normal(size=(2, 4, 1, 1)), "scales": [1, 1, 0.5, 0.5]}
    resize = {"mode": "linear", "antialias": 1}
    nodes = [helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1])]
    between, last = ("r", "y") if resize_first else ("b", "y")
    steps = [helper.make_node("Resize", ["a" if resize_first else "b", "", "scales"],
                              [between if resize_first else last], **resize),
             helper.make_node("Conv", [between if resize_first else "a", "w2"], [last if resize_first else "b"])]
    nodes += steps if resize_first else reversed(steps)
    tensors = [numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in arrays.items()]
    made = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [1, 3, 8, 8])],
                             [helper.make_tensor_value_info("y", 1, None)], tensors)
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), path)
    return path


@pytest.mark.parametrize(("resize_first", "fitted"), [(True, 0), (False, 2)])
def test_what_the_search_cannot_pass_is_told(resize_first: bool, fitted: int, tmp_path: Path) -> None:
    samples = {"x": RNG.normal(size=(4, 1, 3, 8, 8)).astype(np.float32)}
    path = plain_models.recipe(tmp_path, graph(tmp_path / "g.onnx", resize_first), samples, "")
    checks = {c.name: c for c in stages(path, tmp_path)}
    found = checks["quantize: weights fitted"]
    assert found.value == fitted
    assert ("Resize with antialias" in found.note) == resize_first
    assert ("each weight's largest value" in found.note) == resize_first


def test_a_budget_has_nothing_to_go_by_there(tmp_path: Path) -> None:
    samples = {"x": RNG.normal(size=(4, 1, 3, 8, 8)).astype(np.float32)}
    budget = "quantize: {weights: 4, budget: {bits_per_weight: 7}}\ngates: {quantize_db: 1}"
    path = plain_models.recipe(tmp_path, graph(tmp_path / "g.onnx", True), samples, budget)
    with pytest.raises(RecipeError, match=r"yaml:\d+: quantize.budget: what each weight's bits are worth") as caught:
        stages(path, tmp_path)
    assert "Resize with antialias" in caught.value.message
    assert caught.value.hint == ("leave the budget out, and say in quantize.exceptions which weights get 8 bits; or "
                                 "export an interpolation without it")


def stages(path: Path, folder: Path) -> list[Check]:
    """The last of optimize, calibrate, quantize."""
    wished = recipe.load(path)
    job = pipeline.start(wished, source.open_source(wished.model))
    places: dict[str, Path] = {}
    checks: list[Check] = []
    for stage in GRAPH_STAGES[:3]:
        places[stage.name] = folder / stage.name
        places[stage.name].mkdir()
        checks = stage.run(job, {n: places[n] for n in stage.needs}, places[stage.name])
    return checks
