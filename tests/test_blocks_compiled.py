"""A decoder with 4-bit weights in blocks, from the recipe to Qualcomm's binary, and what was compiled read back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_checkpoint
from builds import variant
from tiny_build import Built

from edgeforge import gates, pipeline, recipe
from edgeforge.encodings import Table
from edgeforge.gates import Check
from edgeforge.pipeline import Event

pytestmark = pytest.mark.slow
LENIENT = {"quantize_db": 0, "quantize_centred_db": 0, "quantize_kl": 1, "quantize_ppl": 2, "quantize_flips": 1}
"""random weights lose a lot at 4 bits; what is gated here is the way to the binary"""


def _checks(events: list[Event], stage: str) -> Iterator[Check]:
    return (c for e in events if e.stage == stage for c in e.checks)


@pytest.mark.parametrize("block", [16, 32, 64])
def test_blocks_reach_the_binary(block: int, built: Built) -> None:
    path = variant(built, f"blocks{block}", quantize={"weights": 4, "head": 4, "block": block, "rounding": "nearest"},
                   gates=LENIENT | {"shared_bytes": 1.25})
    events: list[Event] = []
    bundle = pipeline.build(recipe.load(path), events.append)
    fitted = {c.name: c for c in _checks(events, "quantize")}
    assert fitted[f"quantize: weights in blocks of {block}"].value == 15
    assert fitted["quantize: weights left per channel"].value == 0
    compiled = list(_checks(events, "compile"))
    kept = [c for c in compiled if "BLOCKWISE_EXPANSION" in c.name]
    assert [c.value for c in kept] == [24, 24, 1, 1]
    against = [c for c in compiled if "emulator against CPU" in c.name]
    assert {c.name.split()[1].split("_")[0] for c in against} >= {"prompt", "token", "decode"}
    assert min(c.value for c in against) >= 40, against
    assert bundle.is_dir()


def test_where_the_emulator_crashes_decoding_runs_where_it_is_compiled(built: Built, tmp_path: Path) -> None:
    """SmolLM2's width (limits.CRASHING_INPUTS), one layer of it."""
    model = tiny_checkpoint.make(tmp_path / "wide", hidden_size=576, num_attention_heads=9, num_key_value_heads=3,
                                 intermediate_size=640, num_hidden_layers=1)
    path = variant(built, "wide64", model=str(model), gates=LENIENT,
                   quantize={"weights": 4, "head": 4, "block": 64, "rounding": "nearest"})
    events: list[Event] = []
    pipeline.build(recipe.load(path), events.append)
    (check,) = (c for c in _checks(events, "compile") if c.name.startswith("compile: decode steps"))
    assert "SIGSEGV" in check.note
    assert "compiled it anew" in check.note
    assert check.value >= 40
    assert check.threshold == 40


def test_the_split_carries_every_block(built: Built) -> None:
    """The heads' grids are slices of the wholes', and stay on whole numbers (qdq.quantize would refuse else)."""
    path = variant(built, "blocks_split", quantize={"weights": 4, "block": 32, "rounding": "nearest"},
                   gates=LENIENT | {"shared_bytes": 1.25})
    bundle = pipeline.build(recipe.load(path), lambda event: None)
    stamps = {s: Built(bundle, built.cache, path, ()).artifact(s) for s in ("quantize", "split")}
    whole, heads = (Table.load(stamps[s] / "table.json") for s in ("quantize", "split"))
    name = next(n for n in whole if n.endswith("q_proj.weight"))
    for head in range(4):
        part = heads[f"{name}/h{head}"]
        assert part.block_scale is not None
        assert part.block_scale.tolist() == whole[name].take(0, 16 * head, 16 * (head + 1)).block_scale.tolist()
    assert all(c.passed for c in gates.load(stamps["split"]))
