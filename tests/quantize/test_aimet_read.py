"""AIMET's three layouts, there and back: the same grids on the same names, and whatever does not fit named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from made_grids import asymmetric, lpbq, per_block
from quant_graphs import adapted, aimet_model, parse

from edgeforge import encodings
from edgeforge.calibrate import observe
from edgeforge.encodings import Encoding, Table, reals
from edgeforge.errors import EdgeForgeError
from edgeforge.export import aimet, aimet_read
from edgeforge.graph import edit
from edgeforge.quantize import assign
from edgeforge.quantize.products import products

GOLDEN = Path(__file__).parents[2] / "test_vectors" / "aimet"
VERSIONS = pytest.mark.parametrize("version", aimet.VERSIONS)


def small() -> tuple[ir.Model, Table]:
    """A convolution, a MatMul with its blocks along rows, and a Gemm per channel; every kind of grid."""
    rng = np.random.default_rng(0)
    weights = {"w_conv": rng.normal(size=(6, 32, 1, 1)), "w_turned": rng.normal(size=(6, 4)),
               "w_gemm": rng.normal(size=(4, 3)), "w_plain": rng.normal(size=(3, 32))}
    weights = {name: w.astype(np.float32) for name, w in weights.items()}
    model = parse("""
        c = Conv(x, w_conv, b) shape = Constant<value = int64[2] {2, 6}>() r = Reshape(c, shape)
        m = MatMul(r, w_turned) g = Gemm(m, w_gemm) y = MatMul(g, w_plain)
        """, "float[1, 32, 1, 2] x", "float[2, 32] y", b=np.ones(6, np.float32), **weights)
    blocks = rng.integers(1, 17, (3, 4))
    table = Table({name: encodings.per_tensor(-1.3, 2.2, 16) for name in ("x", "m", "g", "y")} | {
        "c": encodings.per_tensor(-1, 2, 16, symmetric=True), "r": encodings.per_tensor(-1, 2, 16, symmetric=True),
        "w_conv": lpbq(weights["w_conv"], 0, 16),
        "w_turned": per_block(weights["w_turned"], 0, 2, symmetric=False),
        "w_gemm": asymmetric(weights["w_gemm"], 1, 8),
        "w_plain": Encoding(4, True, np.array([*range(1, 33)], np.float32) / 64, np.zeros((1, 32), np.int64), 0, 3,
                            np.resize(blocks, (1, 32)), 1)})
    return model, table


@VERSIONS
def test_there_and_back(version: aimet.Version, tmp_path: Path) -> None:
    model, table = small()
    aimet.write(tmp_path / "a.encodings", table, list(model.graph.initializers), "test", version)
    back = aimet_read.read(tmp_path / "a.encodings", model.graph)
    assert set(back) == set(table)
    for name in table:
        assert encodings.equal(back[name], table[name]), name


@VERSIONS
def test_a_whole_decoder_in_blocks_comes_back(version: aimet.Version, tmp_path: Path) -> None:
    """Signs by role: caches and gains unsigned, weights and second operands of 16 bits signed."""
    _, model = adapted("llama")
    ranges = {str(v.name): (-20.0, 20.0) for v in observe.sources(model.graph)}
    ranges |= {"position_ids_cos": (-1.0, 1.0), "position_ids_sin": (-1.0, 1.0), "attention_mask": (-50.0, 0.0)}
    weights = {p.name: lpbq(reals(p.weight.const_value.numpy()), p.outputs_axis, 16)
               for p in products(model.graph) if p.weight.const_value is not None}
    table = assign.assign(model.graph, ranges, assign.Grids(weights=4), weights)
    assert sum(e.block_scale is not None for e in table.values()) > 10
    aimet.write(tmp_path / "a.encodings", table, list(model.graph.initializers), "test", version)
    back = aimet_read.read(tmp_path / "a.encodings", model.graph)
    assert {n: e for n, e in table.items() if not encodings.equal(e, back[n])} == {}


def _damaged(folder: Path, version: aimet.Version, name: str, /, **changes: Any) -> Path:
    model, table = small()
    path = folder / "a.encodings"
    aimet.write(path, table, list(model.graph.initializers), "test", version)
    raw = json.loads(path.read_text(encoding="utf-8"))
    for section in raw.values():
        for entry in section if isinstance(section, list) else ():
            if entry["name"] == name:
                entry.update(changes)
                for key in [k for k, v in entry.items() if v == "gone"]:
                    del entry[key]
    path.write_text(json.dumps(raw), encoding="utf-8")
    return path


@VERSIONS
def test_names_that_the_graph_does_not_have_come_with_the_nearest(version: aimet.Version, tmp_path: Path) -> None:
    path = _damaged(tmp_path, version, "w_conv", name="w_convs")
    with pytest.raises(EdgeForgeError, match=r"the graph has no value for 1 of its encodings:\s+w_convs \(the graph "
                                             r"has w_conv\)"):
        aimet_read.read(path, small()[0].graph)
    table, strangers = aimet_read.match(path, small()[0].graph)
    assert strangers == ["w_convs"]
    assert set(table) == set(small()[1]) - {"w_conv"}


@pytest.mark.parametrize(("version", "name", "changes", "said"), [
    ("1.0.0", "w_conv", {"block_size": 32}, "w_conv: 12 numbers where 6 are needed, one a block of 32"),
    ("1.0.0", "w_conv", {"scale": [1.0]}, "w_conv: scales: 1 where 6 are needed, one a channel"),
    ("1.0.0", "w_conv", {"per_block_int_scale": [17] * 12}, "w_conv: a block's scale is not within 1..16"),
    ("1.0.0", "w_gemm", {"scale": "gone"}, "w_gemm: no 'scale'"),
    ("1.0.0", "w_gemm", {"scale": [0.5, 1.0], "offset": [0, 0]}, r"w_gemm: scales \[2\] do not fit"),
    ("1.0.0", "x", {"enc_type": "PER_CHANNEL"}, "x: it is per channel"),
    ("1.0.0", "x", {"enc_type": "VECTOR"}, "x: enc_type 'VECTOR' is not known; known: PER_TENSOR"),
    ("1.0.0", "x", {"zero_point_shift": [0.5]}, "x: its zero point lies between"),
    ("1.0.0", "x", {"dtype": "FLOAT"}, "x: it is in floating point"),
    ("1.0.0", "x", {"offset": [3]}, "x: a zero point is not on the grid"),
    ("1.0.0", "x", {"bw": 1 << 62}, "x: 4611686018427387904 bits"),
    ("2.0.0", "x", {"output_dtype": "uint999999999999"}, "x: 999999999999 bits"),
    ("1.0.0", "x", {"bw": 3, "offset": [0]}, "x: codes of 3 bits; a graph holds 4, 8, 16"),
    ("2.0.0", "x", {"output_dtype": "uint2", "y_zero_point": 0}, "x: codes of 2 bits"),
    ("1.0.0", "x", {"bw": "gone"}, "'x' is not in the layout of version 1.0.0"),
    ("2.0.0", "x", {"bw": 8}, "'x' is not in the layout of version 2.0.0"),
    ("2.0.0", "x", {"output_dtype": "float16"}, "x: it is in floating point"),
    ("2.0.0", "x", {"output_dtype": "word"}, "x: output_dtype 'word'; known: int4"),
    ("2.0.0", "x", {"y_scale": [[1], [2, 3]]}, "x: lists of different lengths where scales should be"),
    ("2.0.0", "w_conv", {"block_size": 8}, r"w_conv: scales .* in blocks of 8"),
    ("2.1.0", "w_conv", {"y_scale": {"x": [1]}}, "w_conv: no 'x_scale'"),
])
def test_an_entry_that_does_not_fit_is_named(version: aimet.Version, name: str, changes: dict[str, Any], said: str,
                                             tmp_path: Path) -> None:
    with pytest.raises(EdgeForgeError, match=said):
        aimet_read.read(_damaged(tmp_path, version, name, **changes), small()[0].graph)


@pytest.mark.parametrize("text", ["", "[]", "3", '{"version": "0.6.1"}', '{"version": "2.0.0"}', "[" * 9999,
                                  '{"version": "2.0.0", "encodings": [3]}', '{"version": "1.0.0", "encodings": []}'])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.encodings").write_text(text, encoding="utf-8")
    with pytest.raises(EdgeForgeError, match=r"a\.encodings holds no AIMET encodings"):
        aimet_read.read(tmp_path / "a.encodings", small()[0].graph)


def test_kernels_in_blocks_cannot_be_written(tmp_path: Path) -> None:
    grid = per_block(np.ones((4, 8, 3, 3)), 1, 4)
    for version in aimet.VERSIONS:
        with pytest.raises(EdgeForgeError, match=r"w: AIMET's encodings cannot hold blocks \[4, 2, 3, 3\]"):
            aimet.write(tmp_path / "a.encodings", Table({"w": grid}), ["w"], "test", version)


@VERSIONS
def test_what_aimet_wrote_is_the_grid_of_our_formula(version: aimet.Version) -> None:
    """Min-max grids of a model made of sines, written by aimet-onnx 2.42.0 (tests/quantize/aimet_worker.py)."""
    graph = aimet_model().graph
    found = aimet_read.read(GOLDEN / f"theirs-{version}.encodings", graph)
    w1, w2, w3 = (edit.constant(graph.initializers[n]) for n in ("w1", "w2", "w3"))
    assert w1 is not None
    assert w2 is not None
    assert w3 is not None
    ours = lpbq(w1, 0, 16)
    np.testing.assert_array_equal(found["w1"].block_scale, ours.block_scale)
    steps_of = {"w1": ours.steps(), "w2": _whole_grid(w2.reshape(3, 16, 64), 1), "w3": _whole_grid(w3, 0)}
    for name, steps in steps_of.items():
        np.testing.assert_allclose(found[name].steps(), steps, rtol=1e-6)
    assert {n: (e.bits, e.signed, e.axis, e.block, e.channel) for n, e in found.items() if n.startswith("w")} == {
        "w1": (4, True, 1, 16, 0), "w2": (4, True, 0, 16, None), "w3": (4, True, 1, None, None)}
    assert {e.dtype for n, e in found.items() if not n.startswith("w")} == {"uint16"}


def _whole_grid(w: np.ndarray, axis: int) -> np.ndarray:
    """AIMET uses the code -8 too."""
    return np.maximum(w.max(axis) / 7, -w.min(axis) / 8)
