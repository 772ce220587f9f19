"""Mixed precision of a plain graph: bits to spend, and no tokens to measure KL on."""

from __future__ import annotations

import json
from pathlib import Path

import plain_models
import pytest

from edgeforge import encodings, pipeline, precision, recipe, source
from edgeforge.encodings import Table
from edgeforge.errors import RecipeError
from edgeforge.stages.plan import GRAPH_STAGES


def test_a_plain_graph_has_bits_to_spend_and_no_kl(tmp_path: Path) -> None:
    onnx = plain_models.export(plain_models.cnn(), plain_models.images(8), tmp_path / "cnn.onnx")
    more = "quantize: {weights: 4, quality: fast, budget: {%s}}\ngates: {quantize_db: 5}"
    path = plain_models.recipe(tmp_path, onnx, plain_models.images(8), more % "bits_per_weight: 7")
    wished = recipe.load(path)
    job = pipeline.start(wished, source.open_source(wished.model))
    places: dict[str, Path] = {}
    for stage in GRAPH_STAGES[:3]:
        places[stage.name] = tmp_path / stage.name
        places[stage.name].mkdir()
        checks = stage.run(job, {n: places[n] for n in stage.needs}, places[stage.name])
    found = {c.name: c for c in checks}
    assert 4 < found["quantize: bits a weight, head apart"].value <= 7
    assert found["quantize: stored"].value == pytest.approx(found["quantize: bits a weight, head apart"].value)
    assert found["quantize: weights outside the search"].value == 1
    assert found["quantize: weights outside the search"].note == "by their largest value: block.deep.weight 8 bits"
    assert Table.load(places["quantize"] / encodings.FILE)["block.deep.weight"].bits == 8
    chosen = [row["name"] for row in json.loads((places["quantize"] / precision.FILE).read_text())["weights"]]
    assert "head.weight" in chosen, "what makes logits here is no language model's head"
    assert "block.deep.weight" not in chosen
    assert {Table.load(places["quantize"] / encodings.FILE)[n].bits for n in precision.names(places["quantize"])} == {8}
    with pytest.raises(RecipeError, match=r"quantize.budget.kl: a plain graph has no tokens"):
        recipe.load(plain_models.recipe(tmp_path, onnx, plain_models.images(8), more % "kl: 0.1"))
