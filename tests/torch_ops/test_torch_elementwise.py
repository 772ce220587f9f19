"""Arithmetic, logic and activations against onnxruntime: broadcasting, integers, attributes' corners."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp
from torch_graphs import check, floats

X, POSITIVE = floats(2, 3, 4), np.abs(floats(2, 3, 4)) + 0.1
BROADCASTS = [((2, 3, 4), (2, 3, 4)), ((3, 1), (2, 1, 4)), ((), (2, 3)), ((2, 3, 4), (4,)), ((1,), ())]


def whole(*shape: int, dtype: Any = np.int64, seed: int = 1) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).integers(-20, 20, shape), dtype)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Min", "Max", "Equal", "Greater", "Less",
                                "GreaterOrEqual", "LessOrEqual"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64])
def test_two_operands_of_every_type_broadcast(op: str, dtype: Any) -> None:
    for left, right in BROADCASTS:
        a, b = (whole(*shape, seed=seed) for seed, shape in enumerate((left, right)))
        b = np.where(b == 0, 3, b)
        check(op, [np.asarray(a, dtype), np.asarray(b, dtype)])


def test_integers_are_divided_towards_zero() -> None:
    check("Div", [np.array([7, -7, 7, -7, -1, 0]), np.array([2, 2, -2, -2, 3, -5])])


@settings(max_examples=25, deadline=None)
@given(shapes=hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=4, max_side=3))
def test_where_broadcasts_three_operands(shapes: hnp.BroadcastableShapes) -> None:
    keep, yes, no = shapes.input_shapes
    check("Where", [floats(*keep) > 0, floats(*yes, seed=1), floats(*no, seed=2)])


@pytest.mark.parametrize(("base", "exponent"), [
    (X, np.float32(2)), (X, np.float32(3)), (POSITIVE, floats(4)), (X, np.int64(3)), (POSITIVE, np.float32(-0.5)),
    (whole(2, 3), np.int64(3)), (whole(2, 3, dtype=np.int32), np.float32(2))])
def test_a_power_has_the_type_of_its_base(base: np.ndarray, exponent: Any) -> None:
    check("Pow", [base, np.asarray(exponent)])


@pytest.mark.parametrize("op", ["Min", "Max"])
def test_any_number_of_operands(op: str) -> None:
    check(op, [X])
    check(op, [X, floats(3, 1, seed=1), floats(4, seed=2)])


@pytest.mark.parametrize("op", ["Neg", "Abs", "Sign", "Floor", "Exp", "Erf", "Sin", "Cos", "Identity", "Sigmoid",
                                "Tanh", "Relu", "Gelu", "LeakyRelu", "Elu", "HardSigmoid", "HardSwish", "Softplus"])
def test_one_operand(op: str) -> None:
    check(op, [5 * X])
    check(op, [np.float32([-90, -3, -0.0, 0, 3, 90]) if op != "Exp" else np.float32([-90, 0, 9])])


@pytest.mark.parametrize("op", ["Sqrt", "Reciprocal", "Log"])
def test_one_positive_operand(op: str) -> None:
    check(op, [POSITIVE])


@pytest.mark.parametrize("op", ["Neg", "Abs", "Sign", "Relu"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_one_integer(op: str, dtype: Any) -> None:
    if op != "Relu" or dtype == np.int32:  # onnxruntime has no Relu of 64 bits
        check(op, [whole(2, 3, dtype=dtype)])


@pytest.mark.parametrize(("op", "attributes"), [
    ("Gelu", {"approximate": "tanh"}), ("LeakyRelu", {"alpha": 0.3}), ("Elu", {"alpha": 0.7}),
    ("HardSigmoid", {"alpha": 0.3, "beta": 0.4})])
def test_activations_with_attributes(op: str, attributes: dict[str, Any]) -> None:
    check(op, [5 * X], **attributes)


@pytest.mark.parametrize("alpha", [1.0, 1.7])
def test_swish(alpha: float) -> None:
    check("Swish", [5 * X], opset=24, alpha=alpha)


def test_prelu_broadcasts_its_slope() -> None:
    for slope in (floats(3, 1, 1, seed=1), floats(1, seed=1), floats(2, 3, 4, 4, seed=1)):
        check("PRelu", [floats(2, 3, 4, 4), slope])


@pytest.mark.parametrize(("low", "high"), [(-0.5, 0.5), (None, 0.5), (-0.5, None), (None, None), (0.5, -0.5)])
def test_clip(low: float | None, high: float | None) -> None:
    bounds = [None if v is None else np.asarray(v, np.float32) for v in (low, high)]
    check("Clip", [X, *bounds])
    check("Clip", [whole(2, 3), None if low is None else np.asarray(-3), np.asarray(4)])


def test_logic() -> None:
    a, b = floats(2, 3) > 0, floats(3, seed=4) > 0
    for op in ("And", "Or"):
        check(op, [a, b])
    check("Not", [a])
    check("Equal", [a, b])
