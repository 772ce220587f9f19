"""Matrix products, convolutions and pools against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch_graphs as tg
from torch_graphs import check, floats

from edgeforge.errors import UnsupportedError


@pytest.mark.parametrize(("left", "right"), [
    ((3, 4), (4, 5)), ((2, 1, 3, 4), (6, 4, 5)), ((4,), (4, 5)), ((2, 3, 4), (4,)), ((4,), (4,)), ((1, 8, 3), (3, 2))])
def test_matmul_of_every_rank(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    check("MatMul", [floats(*left), floats(*right, seed=1)])


def test_matmul_of_integers() -> None:
    check("MatMul", [np.arange(6).reshape(2, 3) - 3, np.arange(12).reshape(3, 4)])


@pytest.mark.parametrize("bias", [None, (), (5,), (3, 1), (3, 5)])
@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 1)])
def test_gemm(bias: tuple[int, ...] | None, turned: tuple[int, int]) -> None:
    a, b = (floats(*(shape[::-1] if turn else shape), seed=turn)
            for shape, turn in zip(((3, 4), (4, 5)), turned, strict=True))
    c = None if bias is None else floats(*bias, seed=3)
    for scales in ({}, {"alpha": 0.5, "beta": 2.0}):
        check("Gemm", [a, b, c], transA=turned[0], transB=turned[1], **scales)


CONVS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 6, 1, 9), (4, 6, 1, 1), {}),
    ((2, 4, 7, 8), (6, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 4, 7, 8), (6, 4, 3, 2), {"pads": [1, 0, 2, 1], "strides": [2, 3]}),
    ((1, 4, 9, 9), (4, 1, 3, 3), {"group": 4, "dilations": [2, 1], "pads": [2, 1, 2, 1]}),
    ((1, 4, 9, 9), (6, 2, 3, 3), {"group": 2, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 4, 10, 9), (6, 4, 3, 4), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    ((1, 4, 10, 9), (6, 4, 1, 1), {"auto_pad": "SAME_UPPER", "strides": [3, 3]}),
    ((1, 4, 10, 9), (6, 4, 3, 4), {"auto_pad": "VALID", "strides": [2, 2]}),
    ((2, 3, 11), (5, 3, 4), {"pads": [2, 1], "strides": [2]}),
    ((1, 2, 5, 6, 7), (3, 2, 2, 3, 2), {"pads": [0, 1, 1, 1, 1, 0]})]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("x", "weight", "attributes"), CONVS)
def test_conv(x: tuple[int, ...], weight: tuple[int, ...], attributes: dict[str, Any], bias: bool) -> None:
    check("Conv", [floats(*x), floats(*weight, seed=1), floats(weight[0], seed=2) if bias else None],
          tolerance=1e-5, **attributes)


TURNED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 4, 5, 6), (4, 3, 3, 3), {}),
    ((2, 4, 5, 6), (4, 3, 2, 2), {"strides": [2, 2]}),
    ((1, 4, 5, 6), (4, 2, 3, 4), {"strides": [2, 3], "pads": [1, 0, 1, 2], "group": 2}),
    ((1, 4, 5, 6), (4, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    ((1, 4, 5, 6), (4, 3, 3, 3), {"strides": [2, 2], "output_padding": [1, 1]}),
    ((1, 4, 5, 6), (4, 3, 3, 3), {"dilations": [2, 3], "pads": [1, 2, 2, 1]}),
    ((1, 4, 5, 6), (4, 3, 3, 4), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 4, 5, 6), (4, 3, 4, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((1, 4, 5, 6), (4, 3, 3, 3), {"strides": [2, 2], "output_shape": [10, 12]}),
    ((1, 4, 5, 6), (4, 3, 3, 3), {"strides": [2, 2], "output_shape": [10, 12], "auto_pad": "SAME_UPPER"}),
    ((1, 4, 7), (4, 3, 4), {"strides": [2], "pads": [1, 1]}),
    ((1, 2, 3, 4, 3), (2, 2, 2, 2, 2), {"strides": [2, 2, 2]})]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("x", "weight", "attributes"), TURNED)
def test_conv_transpose(x: tuple[int, ...], weight: tuple[int, ...], attributes: dict[str, Any], bias: bool) -> None:
    out = weight[1] * attributes.get("group", 1)
    check("ConvTranspose", [floats(*x), floats(*weight, seed=1), floats(out, seed=2) if bias else None],
          tolerance=1e-5, **attributes)


POOLS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 8, 8), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((1, 3, 7, 8), {"kernel_shape": [3, 2]}),
    ((1, 3, 7, 8), {"kernel_shape": [3, 3], "pads": [1, 0, 2, 1], "strides": [2, 2]}),
    ((1, 3, 7, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ((1, 3, 6, 6), {"kernel_shape": [2, 2], "strides": [3, 3], "ceil_mode": 1, "pads": [0, 0, 1, 1]}),
    ((1, 3, 8, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "pads": [1, 1, 1, 1]}),
    ((1, 3, 9, 9), {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [1, 1, 1, 1]}),
    ((1, 3, 9, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 3, 9, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((1, 3, 9), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
    ((1, 2, 5, 6, 7), {"kernel_shape": [2, 2, 3], "strides": [2, 2, 2]})]


@pytest.mark.parametrize(("x", "attributes"), POOLS)
def test_max_pool(x: tuple[int, ...], attributes: dict[str, Any]) -> None:
    check("MaxPool", [floats(*x) - 5], **attributes)


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize(("x", "attributes"), POOLS)
def test_average_pool(x: tuple[int, ...], attributes: dict[str, Any], include: int) -> None:
    check("AveragePool", [floats(*x) - 5], count_include_pad=include, **attributes)


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pools(op: str) -> None:
    check(op, [floats(2, 3, 4, 5)])
    check(op, [floats(1, 3, 5)])


def test_a_max_pool_that_tells_places_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="y0: MaxPool that tells"):
        tg.both("MaxPool", [floats(1, 1, 4, 4)], outputs=2, kernel_shape=[2, 2])
