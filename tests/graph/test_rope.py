from __future__ import annotations

import graphs
import numpy as np
import pytest

from edgeforge.graph.rope import FuseRope, LowerRope

INPUTS = "float[1,2,s,8] x, float[1,1,s,4] cos, float[1,1,s,4] sin"
Y = "float[1,2,s,8] y"
ROPE = """
    zero = Constant<value = int64[1] {0}>()
    four = Constant<value = int64[1] {4}>()
    end = Constant<value = int64[1] {9223372036854775807}>()
    last = Constant<value = int64[1] {3}>()
    one = Constant<value = int64[1] {1}>()
    cos2 = Concat<axis=-1>(cos, cos)
    sin2 = Concat<axis=-1>(sin, sin)
    low = Slice(x, zero, four, last)
    high = Slice(x, four, end, last)
    minus = Neg(high)
    turned = Concat<axis=-1>(minus, low)
    a = Mul(x, cos2)
    b = Mul(turned, sin2)
    y = Add(a, b)
"""


def test_rotate_half_becomes_one_node_and_back_arithmetic() -> None:
    model = graphs.parse(ROPE, INPUTS, Y)
    assert graphs.apply(FuseRope(), model, s=3)
    assert graphs.ops(model) == ["Squeeze", "Squeeze", "RotaryEmbedding"]
    assert model.graph.outputs[0].name == "y"
    assert graphs.apply(LowerRope(), model, s=3)
    assert "RotaryEmbedding" not in graphs.ops(model)
    assert "Neg" not in graphs.ops(model)
    assert "Squeeze" not in graphs.ops(model), "the half-width rows are the graph inputs themselves"


def test_two_rotations_share_their_rows() -> None:
    body = ROPE + "c = Mul(y, cos2)\n lo = Slice(y, zero, four, last)\n hi = Slice(y, four, end, last)\n" \
        "m = Neg(hi)\n t = Concat<axis=-1>(m, lo)\n d = Mul(t, sin2)\n z = Add(c, d)"
    model = graphs.parse(body, INPUTS, "float[1,2,s,8] z")
    assert graphs.apply(FuseRope(), model, s=3)
    assert graphs.ops(model) == ["Squeeze", "Squeeze", "RotaryEmbedding", "RotaryEmbedding"]


@pytest.mark.parametrize(("old", "new"), [
    ("Mul(x, cos2)", "Mul(cos2, x)"), ("Mul(turned, sin2)", "Mul(sin2, turned)"), ("Add(a, b)", "Add(b, a)"),
    ("last = Constant<value = int64[1] {3}>()", "last = Constant<value = int64[1] {-1}>()"),
])
def test_other_spellings(old: str, new: str) -> None:
    assert old in ROPE
    assert graphs.apply(FuseRope(), graphs.parse(ROPE.replace(old, new), INPUTS, Y), s=3)


INTERLEAVED = ROPE.replace("Slice(x, zero, four, last)", "Slice(x, zero, end, last, two)").replace(
    "Slice(x, four, end, last)", "Slice(x, one, end, last, two)").replace(
    "cos2 =", "two = Constant<value = int64[1] {2}>()\n cos2 =")


@pytest.mark.parametrize("body", [
    INTERLEAVED,
    ROPE.replace("minus = Neg(high)", "minus = Abs(high)"),
    ROPE.replace("Concat<axis=-1>(minus, low)", "Concat<axis=-1>(low, minus)"),
    ROPE.replace("Slice(x, zero, four, last)", "Slice(x, four, end, last)"),
    ROPE.replace("minus = Neg(high)", "minus = Neg(low)"),
    ROPE.replace("cos2 = Concat<axis=-1>(cos, cos)", "cos2 = Concat<axis=-1>(cos, sin)"),
    ROPE.replace("y = Add(a, b)", "y = Sub(a, b)"),
    ROPE.replace("a = Mul(x, cos2)", "c = Abs(x)\n a = Mul(c, cos2)"),
])
def test_what_only_looks_like_rope_is_left_alone(body: str) -> None:
    assert body != ROPE
    model = graphs.parse(body, INPUTS, Y)
    assert not graphs.apply(FuseRope(), model, s=3)


def test_rows_per_head_are_left_alone() -> None:
    """One RotaryEmbedding node reads the same rows for all heads."""
    model = graphs.parse(ROPE, INPUTS.replace("[1,1,s,4]", "[1,2,s,4]"), Y)
    assert not graphs.apply(FuseRope(), model, s=3)


def test_lowered_rope_at_far_positions() -> None:
    """In float32, against float64 truth: nothing is lost at position 32767."""
    model = graphs.parse(ROPE, INPUTS, Y)
    FuseRope()(model)
    LowerRope()(model)
    angles = np.outer([0.0, 2047.0, 32767.0], 1e4 ** (-np.arange(4) / 4))
    x = graphs.rows(1, 2, 3, 8)
    rows = {"x": x, "cos": np.cos(angles)[None, None].astype(np.float32),
            "sin": np.sin(angles)[None, None].astype(np.float32)}
    z = (x[..., :4] + 1j * x[..., 4:]).astype(np.complex128) * np.exp(1j * angles)
    truth = np.concatenate([z.real, z.imag], -1)
    np.testing.assert_allclose(graphs.run(model, rows)["y"], truth, atol=1e-6)
