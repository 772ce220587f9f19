"""scripts/bench/peer: the cut graph is the graph, AIMET's file is read back, and losses and candidates are counted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import tiny_checkpoint
import torch
from quant_graphs import adapted, run

from edgeforge.calibrate import whole
from edgeforge.encodings import Table
from edgeforge.export import aimet
from edgeforge.graph import edit
from edgeforge.quantize.weights.gram import Gram
from edgeforge.quantize.weights.grid import Grid, Steps, encoding, minmax

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench" / "ptq.py"
sys.path.insert(0, str(SCRIPT.parent))

from peer import compare, cut, recipe  # noqa: E402

PYTHON = os.environ.get("EDGEFORGE_AIMET", "")
TOKENS, BLOCK = 12, 16
GRIDS = [Grid(4), Grid(4, BLOCK, lpbq=True)]


@pytest.fixture(scope="module")
def cutting() -> ir.Model:
    """The first layer of a tiny decoder, for 12 tokens."""
    return cut.first(adapted("llama")[1].clone(), 1, TOKENS)


def test_the_cut_graph_is_the_whole_graphs_first_layer(cutting: ir.Model, tmp_path: Path) -> None:
    made, model = adapted("llama")
    name = str(cutting.graph.outputs[0].name)
    model = model.clone()
    model.graph.outputs.append(next(v for n in model.graph for v in n.outputs if v.name == name))
    ids = np.random.default_rng(3).integers(3, made.decoder.vocab, TOKENS)
    feeds = {n: t.numpy() for n, t in whole.feeds(made.decoder, ids, made.tables).items()}
    [sample] = cut.samples(cutting.graph, made.decoder, [ids], made.tables)
    assert not any(n.startswith("past_") for n in sample)
    assert {cut.layer(p.name) for p in cut.searched(cutting.graph)} == {0}
    assert len(cut.searched(cutting.graph)) == 7
    wanted = run(model, tmp_path / "whole", feeds)[name]
    np.testing.assert_allclose(run(cutting, tmp_path / "cut", sample)[name], wanted, rtol=1e-5, atol=1e-5)


def test_a_layer_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="no layer 2"):
        cut.first(adapted("llama")[1].clone(), 3, TOKENS)


@pytest.mark.parametrize("grid", GRIDS)
def test_what_aimets_file_says_is_the_weight_that_ships(grid: Grid, cutting: ir.Model, tmp_path: Path) -> None:
    table, wanted = Table(), {}
    for product in cut.searched(cutting.graph):
        steps, w = chosen(product.matrix(), grid)[1].shipped, product.matrix()
        wanted[product.name] = steps.reals(steps.nearest(w))
        rank = len(edit.known_dims(product.weight))
        table.set(product.name, encoding(steps, product.outputs_axis, product.inputs_axis, rank))
    aimet.write(tmp_path / "theirs.encodings", table, list(table), "test")
    found = compare.chosen_by_aimet(tmp_path, cutting.graph)
    for product in cut.searched(cutting.graph):
        assert torch.allclose(compare.reals(product, found[product.name]), wanted[product.name], rtol=1e-6, atol=0)
    aimet.write(tmp_path / "theirs.encodings", Table(dict(list(table.items())[1:])), list(table), "test")
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn\.q_proj"):
        compare.chosen_by_aimet(tmp_path, cutting.graph)


def chosen(weight: torch.Tensor, grid: Grid) -> tuple[Gram, recipe.Chosen]:
    x = torch.randn(200, len(weight), generator=torch.Generator().manual_seed(1))
    gram = Gram(x.T @ x, damp=0)
    return gram, recipe.choose(weight, gram, grid)


@pytest.mark.parametrize("grid", GRIDS)
def test_a_channel_that_chose_otherwise_is_counted(grid: Grid) -> None:
    w = torch.randn(64, 10, generator=torch.Generator().manual_seed(0))
    gram, made = chosen(w, grid)
    file = encoding(made.shipped, 0, 1, 4)
    blocks, channels = made.searched.blocks.numel(), w.shape[1]
    whole = (blocks, blocks) if grid.lpbq else (0, 0)
    assert compare.choices(w, gram, grid, made, made.searched.blocks, file) == compare.Choices(
        (blocks, blocks), whole, (channels, channels), 0, ())
    other = made.searched.blocks.clone()
    other[0, 3] -= minmax(w, grid)[0, 3] / recipe.CANDIDATES
    moved = compare.choices(w, gram, grid, made, other, file)
    assert moved.steps == (blocks - 1, blocks)
    [gap] = moved.gaps
    assert -1 < gap < 0  # ours is the better: the search took the least
    w[1, 3] = 2.5 * other[0, 3]
    halfway = compare.choices(w, gram, grid, made, other, file)
    assert (halfway.steps, halfway.ties, halfway.gaps) == (moved.steps, 1, ())


def test_integers_are_rounded_after_the_search_and_the_head_is_not_searched() -> None:
    """AIMET's own arithmetic (lpbq_utils.grouped_dynamic_quantize), on the steps that were searched."""
    w = torch.randn(64, 10, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.1, 1, 64)[:, None]
    _, made = chosen(w, GRIDS[1])
    steps = made.searched.blocks.numpy()
    unit = steps.max(0) / 16
    np.testing.assert_allclose(made.shipped.channel[0], unit)
    np.testing.assert_array_equal(made.shipped.factors, np.clip(np.round(steps / unit), 1, 16))
    head: Steps = chosen(w, Grid(8))[1].shipped
    assert torch.equal(head.blocks, minmax(w, Grid(8)))


def test_losses_are_the_outputs_errors_and_add_up() -> None:
    x, e = torch.randn(50, 8), torch.randn(8, 3)
    assert compare.loss(x.T @ x, e) == pytest.approx(float((x @ e).square().sum()), rel=1e-4)
    q, k, again = compare.Losses("q", 1, 2, 3), compare.Losses("k", 4, 5, 6), compare.Losses("q", 7, 8, 9)
    assert compare.totals([q, k, again]) == {"q": compare.Losses("q", 8, 10, 12), "k": k,
                                             "all": compare.Losses("all", 12, 15, 18)}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A command of the script on a tiny checkpoint; the stages run once."""
    folder = tmp_path_factory.mktemp("bench")
    tiny_checkpoint.make(folder / "model", hidden_size=128, intermediate_size=256, max_position_embeddings=2048)
    return [sys.executable, str(SCRIPT), str(folder / "model"), "--cache", str(folder / "cache")]


@pytest.mark.nightly
@pytest.mark.skipif(not PYTHON, reason="EDGEFORGE_AIMET names no interpreter")
def test_aimet_itself_chooses_what_its_recipe_in_our_walk_chooses(prepared: list[str]) -> None:
    made = subprocess.run([*prepared, "--windows", "2", "--layers", "2", "--runs", "1"], capture_output=True, text=True,
                          timeout=600, check=False)
    assert made.returncode == 0, made.stderr
    shares = [float(share) for share in re.findall(r"\(([\d.]+)%\)", made.stdout)]
    assert len(shares) == 5, made.stdout
    assert min(shares) > 99.8
    assert not re.search(r"\d!", made.stdout), made.stdout


@pytest.mark.slow
def test_the_recipe_on_the_whole_model_is_measured_beside_our_qualities(prepared: list[str]) -> None:
    made = subprocess.run([*prepared, "--emulate", "--grids", "lpbq"], capture_output=True, text=True, timeout=600,
                          check=False)
    assert made.returncode == 0, made.stderr
    gap = re.search(r"balanced less AIMET's recipe, in domain, kl: (\S+) \[\S+, \S+\] excludes zero", made.stdout)
    assert gap, made.stdout
    assert float(gap[1]) < 0
