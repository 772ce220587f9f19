"""The quantize stage under a budget: what it buys is within it, written down, and made again without it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from builds import cli, variant
from tiny_build import Built

from edgeforge import check, encodings, pipeline, precision, recipe, source
from edgeforge.encodings import Table
from edgeforge.errors import RecipeError
from edgeforge.gates import Check
from edgeforge.recipe import Recipe
from edgeforge.stages import quantize

W4: dict[str, Any] = {"weights": 4, "block": 16, "quality": "fast"}
O_PROJ = "model.layers.0.self_attn.o_proj.weight"


def wanted(built: Built, name: str, **options: Any) -> Recipe:
    return recipe.load(variant(built, name, quantize=W4 | options))


def made(built: Built, wished: Recipe, out: Path) -> dict[str, Check]:
    """The stage's artifact from the tiny build's earlier ones, and its checks by name."""
    out.mkdir()
    job = pipeline.start(wished, source.open_source(wished.model))
    sources = {name: built.artifact(name) for name in ("adapt", "text", "transform", "calibrate")}
    return {c.name: c for c in quantize.run(job, sources, out)}


def same(a: Path, b: Path) -> bool:
    one, two = Table.load(a / encodings.FILE), Table.load(b / encodings.FILE)
    return set(one) == set(two) and all(encodings.equal(one[n], two[n]) for n in one)


def test_bits_per_weight(built: Built, tmp_path: Path) -> None:
    wished = wanted(built, "bits", budget={"bits_per_weight": 5.5}, exceptions={"*.0.self_attn.o_proj.weight": 8})
    checks = made(built, wished, tmp_path / "a")
    assert 5.2 < checks["quantize: bits a weight, head apart"].value <= 5.5
    table, raised = Table.load(tmp_path / "a" / encodings.FILE), precision.names(tmp_path / "a")
    raw = json.loads((tmp_path / "a" / precision.FILE).read_text())
    assert raised
    assert len(raised) == checks["quantize: weights raised to 8 bits"].value
    bits = {row["name"]: row["bits"] for row in raw["weights"]}
    assert bits == {name: table[name].bits for name in bits}
    assert O_PROJ not in bits
    assert table[O_PROJ].bits == 8

    (tmp_path / "bundle").mkdir()
    precision.bundle(wished, tmp_path / "a", tmp_path / "bundle")
    spent = recipe.load(tmp_path / "bundle" / precision.RECIPE)
    assert spent.quantize.budget is None
    assert spent.out == wished.out.with_name(f"{wished.out.name}-mixed"), "built where it lies it would delete itself"
    assert spent.quantize.exceptions == wished.quantize.exceptions | dict.fromkeys(raised, 8)
    again = made(built, spent, tmp_path / "b")
    assert same(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "model.data").read_bytes() == (tmp_path / "b" / "model.data").read_bytes()
    assert again["quantize: KL"].value == checks["quantize: KL"].value
    assert not (tmp_path / "b" / precision.FILE).exists()


def test_a_kl_between_that_of_4_bits_and_of_8(built: Built, tmp_path: Path) -> None:
    four = made(built, wanted(built, "low"), tmp_path / "low")["quantize: KL"]
    eight = made(built, wanted(built, "high", exceptions={"*": 8}), tmp_path / "high")["quantize: KL"]
    assert (four.gate, eight.gate) == ("quantize_kl (4 bits)", "quantize_kl"), "each is judged by the bits that it has"
    low, high = four.value, eight.value
    target = low / 3
    assert high < target
    checks = made(built, wanted(built, "kl", budget={"kl": target}), tmp_path / "kl")
    assert checks["quantize: KL"].value == checks["quantize: KL under the budget"].value <= target
    raw = json.loads((tmp_path / "kl" / precision.FILE).read_text())
    assert raw["fits"][0] == {"raised": 0, "kl": low}
    assert sum(row["loss_4"] for row in raw["weights"]) == pytest.approx(low - high, rel=0.5)
    assert 0 < raw["raised"] < len(raw["weights"])
    assert 2 <= len(raw["fits"]) <= 4
    left = {p.name for p in (tmp_path / "kl").iterdir()} - {p.name for p in (tmp_path / "low").iterdir()}
    assert left == {precision.FILE}


def test_a_kl_out_of_reach_is_a_gate_that_fails(built: Built, tmp_path: Path) -> None:
    checks = made(built, wanted(built, "far", budget={"kl": 1e-9}), tmp_path / "a")
    assert not checks["quantize: KL under the budget"].passed
    assert checks["quantize: KL under the budget"].threshold == 1e-9
    raw = json.loads((tmp_path / "a" / precision.FILE).read_text())
    assert max(f["raised"] for f in raw["fits"]) == sum(row["loss_4"] > row["loss_8"] for row in raw["weights"])


def test_check_refuses_what_no_choice_can_meet(built: Built, tmp_path: Path) -> None:
    wished = wanted(built, "small", budget={"bits_per_weight": 4.1})
    report = check.examine(wished)
    [said] = [f for f in report.findings if "bits a weight" in f.what]
    assert (said.severity, report.exit_code) == ("recipe", 2)
    assert "4.1 bits a weight, and 4 bits, their scales and the exceptions already take 4." in said.what
    enough = float(said.change.removeprefix("set it to ").split()[0])
    with pytest.raises(RecipeError, match=r"bits_per_weight: 4.1 bits a weight, and 4 bits"):
        made(built, wished, tmp_path / "a")
    mended = wanted(built, "enough", budget={"bits_per_weight": enough})
    assert not [f for f in check.examine(mended).findings if "bits a weight" in f.what]
    path = variant(built, "near", quantize=W4 | {"exceptions": {O_PROJ.replace("proj", "prj"): 8}})
    told = cli("check", path)
    assert f"the nearest is {O_PROJ}" in " ".join((told.stdout + told.stderr).split())


@pytest.mark.slow
def test_the_bundle_and_its_explicit_recipe(built: Built) -> None:
    path = variant(built, "mixed", quantize=W4 | {"budget": {"bits_per_weight": 6}}, gates={
        "quantize_db": 5, "quantize_kl": 3, "quantize_ppl": 3, "quantize_flips": 1, "quantize_centred_db": 0})
    bundle = pipeline.build(recipe.load(path), lambda event: None)
    spent = recipe.load(bundle / precision.RECIPE)
    other = spent.model_copy(update={"out": bundle.parent / "explicit"})
    again = pipeline.build(other, lambda event: None)
    assert (bundle / "model.data").read_bytes() == (again / "model.data").read_bytes()
    assert not (again / precision.FILE).exists()
    assert dataclasses.replace(built, bundle=bundle).artifact("quantize") != dataclasses.replace(
        built, bundle=again).artifact("quantize")


