"""Tables as a recipe's choice: what it may ask for, which weights get them, and the graph that reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from quant_graphs import parse, run

from edgeforge import formats, recipe, targets
from edgeforge.encodings import Table
from edgeforge.errors import RecipeError
from edgeforge.graph import edit
from edgeforge.quantize import footprint, qdq, quality, sequential, weight_grids
from edgeforge.quantize.weights.gram import Gram
from edgeforge.quantize.weights.grid import Grid
from edgeforge.quantize.weights.palette import Palette
from edgeforge.quantize.weights.palette import fit as fit_palette
from edgeforge.sections import Quantize


def _recipe(folder: Path, chip: str, **quantize: Any) -> recipe.Recipe:
    path = folder / "r.yaml"
    raw = {"model": "m", "out": "out", "target": {"chip": chip}, "quantize": quantize}
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    (folder / "m").mkdir(exist_ok=True)
    return recipe.load(path)


@pytest.mark.parametrize(("options", "said"), [
    ({"palette": 16}, "palette 16 is for weights of 4 or 6 bits, and none has them"),
    ({"palette": 16, "weights": 4, "block": 32}, "palette 16 gives outputs tables and block 32 gives inputs steps"),
    ({"palette": 16, "weights": 4, "reconstruct": True}, "tables have none"),
    ({"palette": 16, "weights": 4, "budget": {"kl": 0.1}}, "with palette say in exceptions which weights"),
    ({"palette": 12, "weights": 4}, "palette"),
])
def test_what_tables_do_not_go_with_is_said(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        _recipe(tmp_path, "apple-a18", **options)
    assert said in str(caught.value)


@pytest.mark.parametrize(("chip", "options", "key", "change"), [
    ("apple-a18", {"weights": 6}, "weights", "set quantize.weights to 8, or quantize.palette to 16"),
    ("apple-a18", {"exceptions": {"a": 6}}, "exceptions", "set quantize.exceptions to 8, or quantize.palette to 16"),
    ("apple-m4-gpu", {"weights": 4, "block": 32, "head": 6}, "head",
     "set quantize.head to 8, or quantize.palette to 16 in place of quantize.block"),
    ("geforce-rtx-4090", {"head": 6}, "head", "set quantize.head to 8"),
    ("snapdragon-8-gen-3", {"head": 6}, "head", "set quantize.head to 8"),
])
def test_six_bits_without_tables_get_a_way_out_that_the_chip_takes(chip: str, options: dict[str, Any], key: str,
                                                                   change: str, tmp_path: Path) -> None:
    found = [f for f in formats.check(_recipe(tmp_path, chip, **options)) if "6 bits" in f.what]
    assert [(f.severity, f.where.rpartition(".")[2], f.change) for f in found] == [("recipe", key, change)]
    if "palette" in change:
        mended = {k: v for k, v in options.items() if k != "block"} | {"palette": 16}
        assert [*formats.check(_recipe(tmp_path, chip, **mended))] == []


@pytest.mark.parametrize(("chip", "way_out"), [
    ("snapdragon-8-gen-3", "with quantize.weights 4 and quantize.block 64"),
    ("geforce-rtx-4090", "with quantize.weights 4 and quantize.block 128"),
    ("apple-a18", ""), ("apple-m4-gpu", ""),
])
def test_only_apple_s_chips_read_tables(chip: str, way_out: str, tmp_path: Path) -> None:
    found = [f for f in formats.check(_recipe(tmp_path, chip, weights=4, palette=16)) if "palette" in f.where]
    assert [(f.severity, way_out in f.change) for f in found] == ([("recipe", True)] if way_out else [])
    assert bool(targets.chip(chip).profile.tables) != bool(way_out)


def test_blocks_are_for_the_gpu_of_a_mac(tmp_path: Path) -> None:
    (found,) = formats.check(_recipe(tmp_path, "apple-m4", weights=4, block=32))
    assert found.what.endswith("Core ML runs products of blocks on the CPU, not on the Neural Engine")
    assert "quantize.palette 16" in found.change
    assert not list(formats.check(_recipe(tmp_path, "apple-m4-gpu", weights=4, block=32)))


def test_which_weights_get_tables() -> None:
    """Those of 1x1 convolutions with 4 or 6 bits; where the group does not divide the outputs, their common divisor."""
    shapes = {"a": (32, 8, 1, 1), "b": (24, 32, 1, 1), "k": (8, 24, 3, 1), "e": (32, 8, 1, 1)}
    graph = parse("p = Conv(x, a) q = Conv(p, b) r = Conv(q, k) y = Conv(r, e)", "float[1,8,4,4] x",
                  "float[1,32,2,4] y",
                  **{n: np.ones(s, np.float32) for n, s in shapes.items()}).graph
    found = weight_grids.choose(graph, Quantize(weights=6, palette=16, exceptions={"a": 4, "e": 8}), False,
                                flow="float16")
    assert found == {"a": Grid(4, half=True, palette=16), "b": Grid(6, half=True, palette=8),
                     "k": Grid(8, half=True), "e": Grid(8, half=True)}


def test_a_walk_fits_tables_and_the_printed_graph_reads_them(tmp_path: Path) -> None:
    """Behind quantized weights, as steps are fitted; the float model's weights are the tables' entries."""
    rng = np.random.default_rng(0)
    weights = {"a": rng.normal(size=(16, 8, 1, 1)), "b": rng.normal(size=(8, 16, 1, 1))}
    model = parse("p = Conv(x, a) q = Relu(p) y = Conv(q, b)", "float[1,8,1,64] x", "float[1,8,1,64] y",
                  **{n: w.astype(np.float32) for n, w in weights.items()})
    samples = [{"x": torch.from_numpy(rng.normal(size=(1, 8, 1, 64)).astype(np.float32))} for _ in range(2)]
    grids = {"a": Grid(4, half=True, palette=8), "b": Grid(6, half=True, palette=4)}
    method = quality.method(Quantize(importance=False), False)
    made = {w.name: w.form for w in sequential.quantize(model, samples, grids, method, lambda said: None)}
    palettes = {n: p for n, p in made.items() if isinstance(p, Palette)}
    assert {n: (p.bits, p.group) for n, p in palettes.items()} == {"a": (4, 8), "b": (6, 4)}
    for name, palette in palettes.items():
        np.testing.assert_array_equal(edit.constant(model.graph.initializers[name]), palette.dequantize())
    assert footprint.four_bits(model.graph, palettes)
    assert footprint.bits_per_weight(model.graph, palettes, half=True) == (4 + 6 + 16 * (2 * 16 + 2 * 64) / 128) / 2
    feeds = {"x": rng.normal(size=(1, 8, 1, 64)).astype(np.float32)}
    plain = run(model.clone(), tmp_path / "float", feeds)["y"]
    printed = qdq.quantize(model, Table(), "float16", palettes)
    assert [n.op_type for n in printed.graph].count("Gather") == 2
    np.testing.assert_array_equal(run(printed, tmp_path / "qdq", feeds)["y"], plain)


def test_a_wide_weight_is_fitted_in_pieces_as_it_would_be_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(12, 32, generator=generator), torch.randn(99, 12, generator=generator)
    whole = fit_palette(weight, Gram(x.T @ x), 4, 4)
    monkeypatch.setattr("edgeforge.quantize.weights.palette._OUTPUTS", 10)
    pieces = fit_palette(weight, Gram(x.T @ x), 4, 4)
    np.testing.assert_allclose(pieces.dequantize(), whole.dequantize(), atol=1e-3)


def test_codes_read_no_tables(tmp_path: Path) -> None:
    found = formats.check(_recipe(tmp_path, "apple-m4", weights=6, palette=16, activations=8))
    assert [f.what.partition(",")[0] for f in found] == ["6-bit weights beside 8-bit activations"]
