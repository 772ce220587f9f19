"""Ranges, taps and sums against what numpy finds in the values themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from edgeforge_runtime.manifest import Graph
from onnx_ir.passes import common

from edgeforge.calibrate import observe
from edgeforge.calibrate.statistics import Direction, Floats, Peaks

CALL = Graph(2, 2, ())


def model() -> ir.Model:
    text = ('<ir_version: 10, opset_import: ["" : 23]> g (float[s, 4] x) => (float[4, s] z) '
            "{ y = Mul(x, w) t = Transpose<perm = [1, 0]>(y) z = Sub(t, t) }")
    made = ir.from_onnx_text(text, initializers=[ir.tensor(np.arange(4, dtype=np.float32), name="w")])
    common.ShapeInferencePass()(made)
    return made


def test_only_what_is_computed_or_comes_in_is_watched() -> None:
    assert [v.name for v in observe.sources(model().graph)] == ["x", "y", "z"]


def test_ranges_widen_over_calls(tmp_path: Path) -> None:
    ranges = observe.Ranges()
    executor = observe.ObservingExecutor(model(), ranges, tmp_path, 1)
    executor.run(CALL, {"x": np.array([[1, -2, 3, 4], [0, 0, 0, 1]], np.float32)})
    executor.run(CALL, {"x": np.array([[-5, 1, 1, 2]], np.float32)})
    executor.close()
    assert ranges.seen == {"x": (-5, 4), "y": (-2, 12), "z": (0, 0)}


def test_taps_show_every_value(tmp_path: Path) -> None:
    seen: list[tuple[str, Floats]] = []
    executor = observe.TappedExecutor(model(), ["y", "z"], lambda n, a: seen.append((n, a)), tmp_path, 1)
    first = np.array([[1, -2, 3, 4], [0, 0, 0, 1]], np.float32)
    second = np.array([[-5, 1, 1, 2]], np.float32)
    made = executor.run(CALL, {"x": first})
    executor.run(CALL, {"x": second})
    executor.close()
    assert set(made) == {"z", "y"}
    taps = [a for n, a in seen if n == "y"]
    np.testing.assert_array_equal(taps[0], first * np.arange(4))
    np.testing.assert_array_equal(taps[1], second * np.arange(4))
    assert sum(n == "z" for n, _ in seen) == 2


def test_a_tapped_graph_computes_what_it_did(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    executor = observe.TappedExecutor(model(), [], lambda n, a: pytest.fail(n), tmp_path, 1)
    assert {n: a.tolist() for n, a in executor.run(CALL, {"x": x}).items()} == {"z": np.zeros((4, 3)).tolist()}


def test_peaks_are_magnitudes_by_the_axes_that_stay() -> None:
    rng = np.random.default_rng(1)
    calls = [rng.normal(size=(2, 1, 3, 5)).astype(np.float32) for _ in range(3)]
    peaks = Peaks({"k": (0, 2)})
    for call in calls:
        peaks.see("k", call)
    np.testing.assert_array_equal(peaks.seen["k"], np.abs(np.concatenate(calls, 3)).max((1, 3)))


@pytest.mark.parametrize("at_once", [1, 6, 512])
def test_moments_add_up_and_know_their_strongest_direction(at_once: int,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Direction, "_ROWS", at_once)
    rng = np.random.default_rng(2)
    strong = np.array([3, 0, -4], np.float32) / 5
    calls = [rng.normal(size=(1, 1, n, 3)).astype(np.float32) + 50 * strong for n in (4, 7)]
    found = Direction()
    for call in calls:
        found.see(call)
    rows = np.concatenate([c.reshape(-1, 3) for c in calls])
    np.testing.assert_allclose(found.matrix(), rows.T @ rows, rtol=1e-5)
    assert abs(found.principal() @ strong) == pytest.approx(1, abs=1e-2)


def test_sums_of_nothing_has_no_direction() -> None:
    with pytest.raises(ValueError, match="nothing"):
        Direction().principal()
