from __future__ import annotations

import graphs
import pytest

from edgeforge.graph.norm import FuseRMSNorm

NORM = """
    two = Constant<value = float {2.0}>()
    axes = Constant<value = int64[1] {-1}>()
    eps = Constant<value = float {0.001}>()
    square = Pow(x, two)
    mean = ReduceMean(square, axes)
    total = Add(mean, eps)
    root = Sqrt(total)
    inverse = Reciprocal(root)
    normed = Mul(x, inverse)
    y = Mul(gamma, normed)
"""
X, Y = "float[1,s,8] x", "float[1,s,8] y"


def _fuse(body: str, outputs: str = Y) -> tuple[bool, list[str]]:
    model = graphs.parse(body, X, outputs, gamma=graphs.rows(8))
    return graphs.apply(FuseRMSNorm(), model, s=3), graphs.ops(model)


def test_the_exporters_norm_becomes_one_node() -> None:
    model = graphs.parse(NORM, X, Y, gamma=graphs.rows(8))
    assert graphs.apply(FuseRMSNorm(), model, s=3)
    (node,) = model.graph
    assert node.op_type == "RMSNormalization"
    assert node.outputs[0].name == "y"
    assert [v.name for v in node.inputs if v is not None] == ["x", "gamma"]
    assert node.attributes["axis"].as_int() == -1
    assert node.attributes["epsilon"].as_float() == pytest.approx(0.001)


@pytest.mark.parametrize(("old", "new"), [
    ("Mul(gamma, normed)", "Mul(normed, gamma)"),
    ("Mul(x, inverse)", "Mul(inverse, x)"),
    ("Add(mean, eps)", "Add(eps, mean)"),
    ("Pow(x, two)", "Mul(x, x)"),
    ("int64[1] {-1}", "int64[1] {2}"),
    ("inverse = Reciprocal(root)\n    normed = Mul(x, inverse)", "normed = Div(x, root)"),
])
def test_other_spellings(old: str, new: str) -> None:
    assert old in NORM
    assert _fuse(NORM.replace(old, new)) == (True, ["RMSNormalization"])


@pytest.mark.parametrize(("old", "new"), [
    ("float {2.0}", "float {3.0}"),
    ("int64[1] {-1}", "int64[1] {1}"),
    ("Mul(x, inverse)", "Mul(square, inverse)"),
    ("inverse = Reciprocal(root)\n    normed = Mul(x, inverse)", "normed = Div(root, x)"),
    ("Add(mean, eps)", "Sub(mean, eps)"),
    ("Add(mean, eps)", "Add(mean, mean)"),
])
def test_what_only_looks_like_a_norm_is_left_alone(old: str, new: str) -> None:
    assert old in NORM
    body = NORM.replace(old, new).replace("square = Pow(x, two)", "raw = Pow(x, two)\n square = Abs(raw)") \
        if "3.0" in new else NORM.replace(old, new)
    changed, ops = _fuse(body)
    assert not changed
    assert "RMSNormalization" not in ops


def test_a_gain_that_is_computed_or_wide_is_left_alone() -> None:
    wide = graphs.parse(NORM, X, Y, gamma=graphs.rows(1, 8))
    assert not graphs.apply(FuseRMSNorm(), wide, s=3)
    computed = graphs.parse(NORM.replace("Mul(gamma, normed)", "Mul(root, normed)"), X, Y)
    assert not graphs.apply(FuseRMSNorm(), computed, s=3)


def test_what_others_read_survives() -> None:
    """A second reader of the mean keeps the chain alive beside the fused node."""
    changed, ops = _fuse(NORM, "float[1,s,8] y, float[1,s,1] root")
    assert changed
    assert ops.count("RMSNormalization") == 1
    assert "Sqrt" in ops
