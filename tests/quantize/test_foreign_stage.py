"""A decoder under foreign encodings: the same table back, the cache of stages, the lock, chips, and a budget."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builds import variant
from test_budget_stage import made, same
from tiny_build import Built

from edgeforge import check, encodings, lock, pipeline, precision, recipe, source
from edgeforge.encodings import Encoding, Table
from edgeforge.errors import RecipeError
from edgeforge.export import aimet
from edgeforge.graph import store
from edgeforge.stages import export
from edgeforge.stages.plan import STAGES

NEAREST = {"scales": "minmax", "rounding": "nearest", "refine": 0, "correction": 0, "importance": False}
W4: dict[str, Any] = {"weights": 4, "block": 16}
UP = "model.layers.0.mlp.up_proj.weight"
Entry = dict[str, Any]


@pytest.fixture(scope="module")
def plain(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quantize artifact of 4-bit blocks, without any search, beside what export makes of it."""
    out = tmp_path_factory.mktemp("plain") / "quantize"
    made(built, recipe.load(variant(built, "plain", quantize=W4 | NEAREST)), out)
    (out.parent / "export").mkdir()
    export.write_encodings(out, out.parent / "export")
    return out


def _kept(path: Path, out: Path, wanted: Callable[[str], bool]) -> Path:
    """The entries of a file of 2.0.0 whose names are wanted."""
    raw = json.loads(path.read_text())
    out.write_text(json.dumps(raw | {"encodings": [e for e in raw["encodings"] if wanted(e["name"])]}))
    return out


@pytest.mark.parametrize("file", [export.ENCODINGS, export.ENCODINGS_2])
def test_our_own_export_comes_back_as_the_same_table_and_the_same_codes(
        built: Built, plain: Path, file: str, tmp_path: Path) -> None:
    """Whatever the recipe says about bits of what the file names: here 8, per channel."""
    wished = recipe.load(variant(built, "foreign", quantize={"encodings": str(plain.parent / "export" / file)}))
    checks = made(built, wished, tmp_path / "a")
    assert same(tmp_path / "a", plain)
    assert (tmp_path / "a" / store.DATA).read_bytes() == (plain / store.DATA).read_bytes()
    assert (tmp_path / "a" / store.MODEL).read_bytes() == (plain / store.MODEL).read_bytes()
    assert checks["quantize: foreign encodings"].value == len(Table.load(plain / encodings.FILE))
    assert checks["quantize: weights fitted"].value == 0
    assert 4 < checks["quantize: stored"].value < 7


def test_weights_that_are_not_named_are_searched_and_a_budget_leaves_the_named_alone(
        built: Built, plain: Path, tmp_path: Path) -> None:
    file = _kept(plain.parent / "export" / export.ENCODINGS_2, tmp_path / "up.encodings", lambda name: name == UP)
    options = W4 | {"quality": "fast", "encodings": str(file), "exceptions": {"*up_proj*": 8},
                    "budget": {"bits_per_weight": 5.5}}
    checks = made(built, recipe.load(variant(built, "some", quantize=options)), tmp_path / "a")
    table, theirs = Table.load(tmp_path / "a" / encodings.FILE), Table.load(plain / encodings.FILE)
    assert encodings.equal(table[UP], theirs[UP])
    assert table[UP.replace("layers.0", "layers.1")].bits == 8
    rows = json.loads((tmp_path / "a" / precision.FILE).read_text())["weights"]
    assert UP not in {row["name"] for row in rows}
    assert checks["quantize: foreign encodings"].value == 1
    assert 5 < checks["quantize: bits a weight, head apart"].value <= 5.5


def _coarser(plain: Path, name: str, out: Path) -> str:
    """The file of 2.0.0 with one step twice as large."""
    raw = json.loads((plain.parent / "export" / export.ENCODINGS_2).read_text())
    for entry in raw["encodings"]:
        if entry["name"] == name:
            entry["y_scale"] *= 2
    out.write_text(json.dumps(raw))
    return str(out)


def test_the_mask_stays_as_the_runtime_writes_it(built: Built, plain: Path, tmp_path: Path) -> None:
    file = _coarser(plain, "attention_mask", tmp_path / "a.encodings")
    checks = made(built, recipe.load(variant(built, "mask", quantize={"encodings": file})), tmp_path / "a")
    assert same(tmp_path / "a", plain)
    assert checks["quantize: foreign encodings"].note == "attention_mask not taken: there the grid is fixed"


def test_a_cache_has_one_grid_in_and_out(built: Built, plain: Path, tmp_path: Path) -> None:
    file = _coarser(plain, "past_key_0_in", tmp_path / "a.encodings")
    path = variant(built, "cannot", quantize={"encodings": file})
    with pytest.raises(RecipeError, match="past_key_0_in and past_key_0_out lie on one grid here") as caught:
        made(built, recipe.load(path), tmp_path / "a")
    assert f"{path}:" in caught.value.message
    assert "quantize.encodings: cannot take 1 of the file's encodings:" in caught.value.message


def _keys(path: Path) -> dict[str, str]:
    wished = recipe.load(path)
    return {s.name: key for s, key, _ in pipeline.places(pipeline.start(wished, source.open_source(wished.model)))}


def test_its_bytes_decide_the_quantize_stage_and_where_it_lies_the_bundles_recipe(
        built: Built, plain: Path, tmp_path: Path) -> None:
    theirs = plain.parent / "export" / export.ENCODINGS_2
    one = _kept(theirs, tmp_path / "one.encodings", lambda name: name == UP)
    path = variant(built, "keyed", quantize={"encodings": str(one)})
    before, without, inputs = _keys(path), _keys(built.recipe), _inputs(path)
    (tmp_path / "two.encodings").write_bytes(one.read_bytes())
    moved = variant(built, "moved", quantize={"encodings": str(tmp_path / "two.encodings")})
    assert {n for n, key in _keys(moved).items() if key != before[n]} == {"bundle"}
    assert _inputs(moved) == inputs
    one.write_bytes(one.read_bytes() + b"\n")
    names = [s.name for s in STAGES]
    behind = {*names[names.index("quantize"):]}
    for other in (_keys(path), without):
        assert {n for n in names if other[n] != before[n]} == behind
    assert {k for k, v in _inputs(path).items() if v != inputs[k]} == {"encodings"}


def _inputs(path: Path) -> dict[str, Any]:
    wished = recipe.load(path)
    return lock.inputs(pipeline.start(wished, source.open_source(wished.model)))


def _entry(name: str, bits: int, scale: list[float], kind: str, **more: Any) -> Entry:
    return {"name": name, "dtype": "INT", "enc_type": kind, "bw": bits, "scale": scale,
            "offset": [-(1 << (bits - 1))] * len(scale)} | more


@pytest.mark.parametrize(("chip", "entry", "said"), [
    ("snapdragon-8-gen-1", _entry("w", 4, [1.0], "PER_CHANNEL"),
     "w: other bits than snapdragon-8-gen-1 (Hexagon v69) takes: 8 or 16"),
    ("snapdragon-8-gen-1", _entry("w", 8, [1.0], "LPBQ", compressed_bw=4, block_size=16, per_block_int_scale=[16]),
     "w: in blocks; snapdragon-8-gen-1 (Hexagon v69) has one scale an output channel"),
    ("snapdragon-8-gen-3", _entry("w", 4, [1.0], "PER_BLOCK", block_size=16), "w: in blocks with float scales"),
    ("snapdragon-8-gen-3", _entry("w", 8, [1.0], "PER_CHANNEL", offset=[-3]), "w: asymmetric"),
    ("snapdragon-8-gen-3", _entry("w", 8, [1.0], "PER_CHANNEL", offset="gone"), "the encoding of w: "),
    ("snapdragon-8-gen-3", _entry("w", 8, [-1.0], "PER_CHANNEL"), "the encoding of w: a scale is not finite"),
    ("snapdragon-8-gen-3", _entry("w", 8, [1.0], "PER_TENSOR", dtype="FLOAT"), "the encoding of w: it is in floating"),
    ("snapdragon-8-gen-3", _entry("x", 12, [1.0], "PER_TENSOR"), "x: other bits than snapdragon-8-gen-3 (Hexagon v75) "
     "takes: 4 or 8 or 16; export weights with 4 or 8 or 16 bits, and activations with 16 (caches as quantize.kv "
     "says)"),
    ("snapdragon-8-gen-3", _entry("w", 8, [1.0], "PER_TENSOR", offset=[-3]), ""),
    ("snapdragon-8-gen-3", _entry("b", 32, [1.0], "PER_TENSOR"), ""),
])
def test_what_the_chip_lacks_is_told_before_any_work(built: Built, chip: str, entry: Entry, said: str,
                                                     tmp_path: Path) -> None:
    file = tmp_path / "a.encodings"
    file.write_text(json.dumps({"version": "1.0.0", "activation_encodings": [], "param_encodings": [entry]}))
    wished = recipe.load(variant(built, "chip", target={"chip": chip}, quantize={"encodings": str(file)}))
    report = check.examine(wished)
    found = [f"{f.what}; {f.change}" for f in report.findings if "quantize.encodings" in f.where]
    assert any(said in what for what in found) if said else found == []
    assert report.exit_code == (2 if said else 0)


@pytest.mark.parametrize("version", aimet.VERSIONS)
@pytest.mark.parametrize(("inputs", "block", "told"), [(576, 64, True), (576, 32, False), (1024, 64, False)])
def test_foreign_blocks_that_crash_the_emulator_are_told(built: Built, version: aimet.Version, inputs: int, block: int,
                                                         told: bool, tmp_path: Path) -> None:
    whole = np.full((64, inputs // block, 1, 1), 16)
    grid = Encoding(4, True, np.ones(64, np.float32), np.zeros(whole.shape, np.int64), 1, block, whole, 0)
    aimet.write(tmp_path / "a.encodings", Table({"w": grid}), ["w"], "test", version)
    path = variant(built, "crash", quantize={"encodings": str(tmp_path / "a.encodings")})
    report = check.examine(recipe.load(path))
    said = [f.what for f in report.findings if "quantize.encodings" in f.where]
    assert report.exit_code == 0
    assert [s.startswith("w: the x86 emulator crashes on weights of 576 inputs in blocks of 64") for s in said] == (
        [True] if told else [])


@pytest.mark.parametrize("version", aimet.VERSIONS)
def test_what_we_export_is_what_the_chip_takes(built: Built, plain: Path, version: aimet.Version,
                                               tmp_path: Path) -> None:
    parameters = [str(v.name) for v in store.load(plain / "float").graph.initializers.values()]
    aimet.write(tmp_path / "a.encodings", Table.load(plain / encodings.FILE), parameters, "test", version)
    wished = recipe.load(variant(built, "taken", quantize={"encodings": str(tmp_path / "a.encodings")}))
    assert check.examine(wished).exit_code == 0
