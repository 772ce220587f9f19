"""Normalisations, rotary embedding and reductions against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch_graphs import check, floats, integers

X = floats(2, 3, 4, 6)


@pytest.mark.parametrize("axis", [None, 0, 1, -1, -2, 3])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_along_every_axis(op: str, axis: int | None) -> None:
    check(op, [20 * X], **({} if axis is None else {"axis": axis}))


def test_softmax_of_masked_scores() -> None:
    check("Softmax", [np.where(np.tri(5, dtype=bool), floats(5, 5), np.float32(-1e9)).astype(np.float32)])


@pytest.mark.parametrize(("attributes", "scale"), [
    ({}, (6,)), ({"axis": 2}, (4, 6)), ({"axis": -3, "epsilon": 0.1}, (3, 4, 6)), ({"axis": 1}, (6,))])
def test_rms_and_layer_norm(attributes: dict[str, Any], scale: tuple[int, ...]) -> None:
    gain, bias = floats(*scale, seed=1), floats(*scale, seed=2)
    check("RMSNormalization", [X, gain], tolerance=1e-5, **attributes)
    if scale != (6,) or not attributes:  # onnxruntime wants LayerNormalization's scale in full
        for inputs in ([X, gain], [X, gain, bias]):
            check("LayerNormalization", inputs, tolerance=1e-5, **attributes)
        check("LayerNormalization", [X, gain, bias], outputs=3, tolerance=1e-5, **attributes)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 7), (1, 3, 1, 1)])
def test_instance_norm(shape: tuple[int, ...]) -> None:
    check("InstanceNormalization", [floats(*shape), floats(3, seed=1), floats(3, seed=2)], tolerance=1e-5)
    check("InstanceNormalization", [floats(*shape), floats(3, seed=1), floats(3, seed=2)], tolerance=1e-5, epsilon=0.1)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [-1, 1])
def test_lp_norm_leaves_zeros(p: int, axis: int) -> None:
    check("LpNormalization", [X * (np.arange(6) > 1) * (np.arange(3) != 1)[:, None, None].astype(np.float32)],
          p=p, axis=axis)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved: int) -> None:
    x, angles = floats(2, 4, 5, 8), floats(2, 5, 4, seed=1)
    cos, sin = np.cos(angles), np.sin(angles)
    check("RotaryEmbedding", [x, cos, sin], interleaved=interleaved)
    check("RotaryEmbedding", [x.transpose(0, 2, 1, 3).reshape(2, 5, 32).copy(), cos, sin], interleaved=interleaved,
          num_heads=4)
    table = floats(20, 4, seed=3)
    positions = np.array([[0, 1, 2, 3, 19], [7, 6, 5, 4, 3]])
    check("RotaryEmbedding", [x, np.cos(table), np.sin(table), positions], interleaved=interleaved)
    part = floats(20, 2, seed=3)
    check("RotaryEmbedding", [x, np.cos(part), np.sin(part), positions], interleaved=interleaved,
          rotary_embedding_dim=4, num_heads=4)


REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"]


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("axes", [None, [], [1], [-1, 0], [0, 1, 2]])
def test_reductions(kind: str, axes: list[int] | None) -> None:
    x = np.abs(floats(2, 3, 4)) + 0.2
    given = None if axes is None else integers(*axes)
    for keep in (0, 1):
        check(f"Reduce{kind}", [x, given], keepdims=keep, tolerance=1e-5)


@pytest.mark.parametrize("kind", ["Sum", "Mean", "Max", "Min"])
def test_reduction_over_no_axes(kind: str) -> None:
    check(f"Reduce{kind}", [X, None], noop_with_empty_axes=1)
    check(f"Reduce{kind}", [X, integers()], noop_with_empty_axes=1)
    check(f"Reduce{kind}", [np.float32(3).reshape(())])


@pytest.mark.parametrize("kind", ["Sum", "Mean", "Max", "Min", "Prod"])
def test_reductions_of_integers_keep_their_width(kind: str) -> None:
    check(f"Reduce{kind}", [np.array([[7, -3, 2], [1, -9, -4]], np.int32), integers(1)])


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_arg_max_with_ties(last: int, axis: int) -> None:
    x = np.random.default_rng(0).integers(0, 3, (4, 9)).astype(np.float32)
    for keep in (0, 1):
        check("ArgMax", [x], axis=axis, keepdims=keep, select_last_index=last)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_sums(exclusive: int, reverse: int) -> None:
    for x in (X, np.arange(24, dtype=np.int32).reshape(2, 3, 4)):
        for axis in (0, -1):
            check("CumSum", [x, np.array(axis)], exclusive=exclusive, reverse=reverse)
