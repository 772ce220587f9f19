"""Grids: what rounding costs, what stays exact, and the table on disk."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgeforge import encodings
from edgeforge.encodings import Encoding, Table
from edgeforge.errors import EdgeForgeError
from edgeforge.metrics import sqnr_db
from edgeforge.quantize.weights.grid import per_channel

BITS = st.sampled_from([4, 8, 16])
REALS = st.floats(-1e4, 1e4, width=32)


@settings(deadline=None)
@given(low=REALS, high=REALS, bits=BITS, data=st.data())
def test_rounding_costs_at_most_half_a_step(low: float, high: float, bits: int, data: st.DataObject) -> None:
    low, high = min(low, high), max(low, high)
    grid = encodings.per_tensor(low, high, bits)
    x = np.array(data.draw(st.lists(st.floats(min(low, 0), max(high, 0), width=32), min_size=1)), np.float32)
    step = float(grid.scale)
    # The zero point is rounded too, so that one end of the range may lie half a step outside the grid.
    ends = np.abs(grid.dequantize(grid.quantize(x)) - x) - step
    assert (ends <= 1e-5 * (abs(low) + abs(high)) + 1e-12).all()
    inside = x[(x >= (grid.low - grid.zero_point) * step) & (x <= (grid.high - grid.zero_point) * step)]
    error = np.abs(grid.dequantize(grid.quantize(inside)) - inside)
    assert (error <= step / 2 * 1.001 + 4e-7 * np.abs(inside)).all()


@settings(deadline=None)
@given(low=REALS, high=REALS, bits=BITS, symmetric=st.booleans())
def test_zero_is_exact_on_every_grid(low: float, high: float, bits: int, symmetric: bool) -> None:
    grid = encodings.per_tensor(min(low, high), max(low, high), bits, symmetric)
    assert grid.dequantize(grid.quantize(np.zeros(3, np.float32))).tolist() == [0, 0, 0]
    assert grid.scale > 0


@settings(deadline=None)
@given(peak=st.floats(1e-3, 1e6), bits=BITS)
def test_a_symmetric_grid_has_its_zero_in_the_middle_and_its_peak_on_the_grid(peak: float, bits: int) -> None:
    unsigned = encodings.per_tensor(-peak, peak / 3, bits, symmetric=True)
    signed = encodings.per_tensor(-peak, peak / 3, bits, signed=True)
    assert int(unsigned.zero_point) == 1 << (bits - 1)
    assert int(signed.zero_point) == 0
    assert unsigned.symmetric
    assert signed.symmetric
    assert unsigned.scale == signed.scale
    assert float(unsigned.dequantize(unsigned.quantize(np.array(-peak)))) == pytest.approx(-peak, rel=1e-5)


@pytest.mark.parametrize(
    ("low", "high", "zero"), [(0.0, 5.0, 0), (3.0, 5.0, 0), (-5.0, 0.0, 255), (-5.0, -1.0, 255), (-1.0, 4.0, 51)]
)
def test_the_zero_point_is_the_code_of_zero(low: float, high: float, zero: int) -> None:
    """Never its negative: an offset of the other sign mirrors a range that lies on one side of zero."""
    grid = encodings.per_tensor(low, high, 8)
    assert int(grid.zero_point) == zero
    assert float(grid.dequantize(np.array(grid.low))) == pytest.approx(min(low, 0), abs=float(grid.scale))
    assert float(grid.dequantize(np.array(grid.high))) == pytest.approx(max(high, 0), abs=float(grid.scale))


@settings(max_examples=50, deadline=None)
@given(axis=st.integers(0, 2), bits=BITS, data=st.data())
def test_a_channel_has_its_own_step_along_its_axis(axis: int, bits: int, data: st.DataObject) -> None:
    w = data.draw(arrays.arrays(np.float32, (3, 4, 2), elements=st.floats(-100, 100, width=32)))
    grid = per_channel(w, axis, bits)
    assert grid.scale.shape == (w.shape[axis],)
    for i in range(w.shape[axis]):
        part = w.take([i], axis)
        alone = per_channel(part, axis, bits)
        assert grid.take(axis, i, i + 1).scale == alone.scale
        np.testing.assert_array_equal(grid.quantize(w).take([i], axis), alone.quantize(part))
    step = np.expand_dims(grid.scale, tuple(a for a in range(3) if a != axis))
    assert (np.abs(grid.dequantize(grid.quantize(w)) - w) <= step * 0.501).all()


def test_slicing_along_another_axis_leaves_the_channels_alone() -> None:
    grid = per_channel(np.ones((3, 4), np.float32), 0, 8)
    assert grid.take(1, 0, 2) is grid


def test_zero_and_tiny_channels_keep_a_positive_finite_scale() -> None:
    w = np.array([[0, 0], [1e-30, -1e-30], [1e-12, 0], [1, -2]], np.float32)
    grid = per_channel(w, 0, 8)
    assert (grid.scale >= np.finfo(np.float32).tiny).all()
    made = grid.dequantize(grid.quantize(w))
    assert np.isfinite(made).all()
    assert (made[:3] == 0).all()
    assert made[3, 1] == -2


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_range_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(EdgeForgeError, match="not finite"):
        encodings.per_tensor(min(bad, -1.0), max(bad, 1.0), 8)


@settings(deadline=None)
@given(codes=arrays.arrays(np.int64, 16, elements=st.integers(-8, 7)), scale=st.floats(2.0**-20, 1024, width=32))
def test_what_lies_on_the_grid_keeps_its_codes(codes: np.ndarray, scale: float) -> None:
    """So weights that were rounded elsewhere (GPTQ) can be rounded again to the same codes."""
    grid = Encoding(4, True, np.array(scale, np.float32), np.array(0))
    np.testing.assert_array_equal(grid.quantize(grid.dequantize(codes)), codes)


def blocked() -> Encoding:
    """LPBQ: 4 bits, blocks of 2 along axis 1, whole-number block scales on a scale per output channel."""
    scale = np.array([0.5, 0.25, 2.0], np.float32)
    blocks = np.array([[1, 16], [3, 2], [7, 1]], np.int64)
    return Encoding(4, True, scale, np.zeros((3, 2), np.int64), axis=1, block=2, block_scale=blocks, channel=0)


def test_a_block_has_the_step_of_its_channel_times_its_integer() -> None:
    grid = blocked()
    made = grid.dequantize(np.ones((3, 4), np.int64))
    np.testing.assert_array_equal(made, [[0.5, 0.5, 8, 8], [0.75, 0.75, 0.5, 0.5], [14, 14, 2, 2]])
    np.testing.assert_array_equal(grid.quantize(made), np.ones((3, 4)))


@settings(deadline=None)
@given(
    entries=st.dictionaries(
        st.text(min_size=1, max_size=8),
        st.tuples(REALS, REALS, BITS, st.booleans()),
        max_size=5,
    )
)
def test_a_table_survives_json_to_the_last_bit(entries: dict[str, tuple[float, float, int, bool]],
                                               tmp_path_factory: pytest.TempPathFactory) -> None:
    made = {n: encodings.per_tensor(min(a, b), max(a, b), bits, sym) for n, (a, b, bits, sym) in entries.items()}
    made["blocked"] = blocked()
    made["channels"] = per_channel(np.random.default_rng(0).normal(size=(5, 3)), 1, 8)
    path = tmp_path_factory.mktemp("table") / "table.json"
    Table(made).save(path)
    read = Table.load(path)
    assert set(read) == set(made)
    assert all(encodings.equal(read[n], made[n]) for n in made)


_GRID = {"bits": 8, "signed": False, "scale": 0.5, "zero_point": 3}
_BLOCKS = {"bits": 4, "signed": True, "scale": [0.5, 1.0], "zero_point": [[0, 0], [0, 0]], "axis": 1, "block": 32,
           "block_scale": [[1, 16], [2, 3]], "channel": 0}
_WRONG: list[dict[str, object]] = [
    {"bits": 0}, {"bits": 1 << 40}, {"bits": float("inf")}, {"bits": "8"}, {"bits": True}, {"signed": 0}, {"scale": 0},
    {"scale": -0.5}, {"scale": float("nan")}, {"scale": 1e300}, {"scale": 1e-60}, {"scale": "0.5"}, {"scale": [0.5]},
    {"scale": [[0.5], 1]}, {"scale": None}, {"scale": []}, {"zero_point": 256}, {"zero_point": -1},
    {"zero_point": 10**30}, {"zero_point": 2.7}, {"zero_point": [3]}, {"axis": "0"}, {"axis": -1}, {"axis": 0},
    {"block": 2}]
_WRONG_BLOCKS: list[dict[str, object]] = [
    {"axis": 2}, {"axis": None}, {"block": 0}, {"block": None}, {"channel": None}, {"channel": 2}, {"scale": [0.5]},
    {"block_scale": [[0, 1], [1, 1]]}, {"block_scale": [[17, 1], [1, 1]]}, {"block_scale": [1, 2]},
    {"block_scale": [[1, 16], [2.6, 3]]}, {"bits": 8},
    {"zero_point": [0, 0]}, {"zero_point": [[0, 0, 0], [0, 0, 0]]}, {"zero_point": [[8, 0], [0, 0]]}]


def test_the_grids_that_are_damaged_next_are_sound(tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text(json.dumps({"a": _GRID, "b": _BLOCKS}))
    assert Table.load(tmp_path / "table.json")["b"].steps().tolist() == [[0.5, 8.0], [2.0, 3.0]]


@pytest.mark.parametrize("text", [
    "", "[]", '{"x": {"bits": 8}}', '{"x": 3}', "{", "[" * 100_000, "3",
    *(json.dumps({"x": _GRID | w}) for w in _WRONG),
    *(json.dumps({"x": _BLOCKS | w}) for w in _WRONG_BLOCKS)])
def test_a_file_that_is_no_table_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(EdgeForgeError, match=r"table\.json is not an encoding table"):
        Table.load(path)


def test_one_name_has_one_grid() -> None:
    table = Table()
    table.set("x", encodings.per_tensor(0, 1, 8))
    table.set("x", encodings.per_tensor(0, 1, 8))
    with pytest.raises(EdgeForgeError, match="two encodings for x"):
        table.set("x", encodings.per_tensor(0, 2, 8))


def test_the_tiny_channel_of_a_half_precision_scale_survives() -> None:
    """Row 1 peaks at 1e-6: its scale, 1e-6 / 127, is 0 in float16 (C32)."""
    w = np.array([[0, 0], [1e-6, -5e-7]], np.float32)
    grid = per_channel(w, 0, 8)
    assert np.float16(1e-6 / 127) == 0
    assert grid.scale[1] > 0
    np.testing.assert_allclose(grid.dequantize(grid.quantize(w)), w, atol=grid.scale.max() / 2)
    assert grid.dequantize(grid.quantize(w))[1, 0] == pytest.approx(1e-6, rel=1e-3)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_blocks_with_zero_points_lie_along_their_axis(axis: int) -> None:
    """Eight nines, scales 1 2 3 4, zero points 1 2 3 4, blocks of 2: opset 21's DequantizeLinear gives these (C23)."""
    shape = [1, 1, 1]
    shape[axis] = -1
    step = np.arange(1, 5, dtype=np.float32).reshape(shape)
    grid = Encoding(8, False, step, step.astype(np.int64), axis=axis, block=2)
    made = grid.dequantize(np.full(8, 9).reshape(shape))
    assert made.reshape(-1).tolist() == [8, 8, 14, 14, 18, 18, 20, 20]


@pytest.mark.parametrize("axis", [0, 1])
def test_the_other_axis_costs_thirty_decibels(axis: int) -> None:
    """Channels that differ by powers of ten (C35)."""
    rows = np.random.default_rng(3).normal(size=(6, 6)) * 10.0 ** np.arange(6)[:, None]
    w = (rows if axis == 0 else rows.T).astype(np.float32)
    right, wrong = (per_channel(w, a, 8) for a in (axis, 1 - axis))
    small = w.take(range(3), axis)
    db = [sqnr_db(small, g.dequantize(g.quantize(w)).take(range(3), axis)) for g in (right, wrong)]
    assert db[0] > db[1] + 30
