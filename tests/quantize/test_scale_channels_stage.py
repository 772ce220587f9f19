"""The transform stage with equivalent scaling: what it reports, and what its result depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builds import variant
from tiny_build import Built

from edgeforge import pipeline, recipe, source
from edgeforge.gates import Check
from edgeforge.recipe import Recipe
from edgeforge.stages import transform
from edgeforge.stages.plan import STAGES

W4: dict[str, Any] = {"weights": 4, "block": 16}


def wanted(built: Built, name: str, *transforms: str, **options: Any) -> Recipe:
    return recipe.load(variant(built, name, quantize={"transforms": [*transforms], **options}))


def made(built: Built, wished: Recipe, out: Path) -> dict[str, Check]:
    """The stage's artifact from the tiny build's earlier ones, and its checks by name."""
    out.mkdir()
    job = pipeline.start(wished, source.open_source(wished.model))
    sources = {name: built.artifact(name) for name in ("adapt", "optimize", "text")}
    return {c.name: c for c in transform.run(job, sources, out)}


@pytest.mark.parametrize(("others", "left"), [
    ((), ""), (("rotate", "equalize_kv", "split_outliers"),
               "; skipped: model.layers.*.self_attn.o_proj.weight (2): equalize_kv scales the values")])
def test_the_stage_scales_and_says_what_it_left(built: Built, tmp_path: Path, others: tuple[str, ...],
                                                left: str) -> None:
    checks = made(built, wanted(built, "scaled", "scale_channels", *others, **W4), tmp_path / "a")
    found = checks["transform: channels scaled"]
    assert 4 <= found.value <= (6 if left else 8)
    assert found.note.startswith("rounding of their weights loses ")
    assert found.note.endswith(f" dB more{left}")
    assert checks["transform: prefill logits"].value >= 100
    assert checks["transform: decode logits"].value >= 100
    again = made(built, wanted(built, "scaled", "scale_channels", *others, **W4), tmp_path / "b")
    assert again == checks
    assert (tmp_path / "a" / "model.data").read_bytes() == (tmp_path / "b" / "model.data").read_bytes()


def test_the_result_depends_on_the_weights_grid_where_it_is_asked_for(built: Built) -> None:
    keys = next(s for s in STAGES if s.name == "transform").keys
    rotated, scaled = (
        [keys(wanted(built, "keys", name, **options)) for options in ({}, W4, W4 | {"exceptions": {"*o_proj*": 8}})]
        for name in ("rotate", "scale_channels"))
    assert rotated[0] == rotated[1] == rotated[2]
    assert scaled[0] != scaled[1]
    assert scaled[1] == scaled[2]  # a budget writes exceptions down, and has to build the same
