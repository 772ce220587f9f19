"""Which grid each weight gets."""

from __future__ import annotations

import numpy as np
import pytest
from quant_graphs import adapted, parse

from edgeforge.quantize import weight_grids
from edgeforge.recipe import Quantize


def test_blocks_where_they_divide_and_channels_where_they_do_not() -> None:
    """C31: 120 inputs, and a kernel of 3x3, keep one scale a channel, and are reported."""
    shapes = {"a": (8, 128, 1, 1), "b": (120, 8, 1, 1), "c": (5, 120, 1, 1), "k": (64, 5, 3, 3), "m": (64, 8)}
    model = parse("p = Conv(x, a) q = Conv(p, b) r = Conv(q, c) s = Conv(r, k) t = Transpose<perm = [0, 2, 3, 1]>(s) "
                  "y = MatMul(t, m)", "float[1,128,3,3] x", "float[1,1,1,8] y",
                  **{n: np.ones(s, np.float32) for n, s in shapes.items()})
    options = Quantize(weights=4, block=64)
    found = weight_grids.choose(model.graph, options, False)
    assert {n: (g.bits, g.block, g.lpbq) for n, g in found.items()} == {
        "a": (4, 64, True), "b": (4, None, False), "c": (4, None, False), "k": (4, None, False), "m": (4, 64, True)}
    assert weight_grids.left_whole(model.graph, options, False) == {
        "b": "8 inputs", "c": "120 inputs", "k": "only 1x1 convolutions and MatMuls take blocks"}


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_the_head_has_bits_of_its_own(family: str) -> None:
    """Behind a soft cap, too."""
    _, model = adapted(family)
    found = weight_grids.choose(model.graph, Quantize(weights=4, block=16, head=8), True)
    assert {n: g.bits for n, g in found.items() if g.bits != 4} == {"lm_head.weight": 8}
