"""C25: what is on a grid already stays on it through every graph pass, and a weight's way there ends as one constant.

A Dequantize that folds away leaves a float weight, which a compiler quantizes anew or takes for an input.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

import graphs
import numpy as np
import onnx_ir as ir
import pytest

import edgeforge.graph
from edgeforge.graph import edit
from edgeforge.graph.constants import FoldConstants
from edgeforge.graph.fold import fold
from edgeforge.graph.optimize_plain import optimize
from edgeforge.targets import HTP

BODY = """
  plain = DequantizeLinear<axis = 1>(codes, s, o)
  a = MatMul(x, plain)
  wq = QuantizeLinear<axis = 1>(weight, s, o)
  printed = DequantizeLinear<axis = 1>(wq, s, o)
  b = MatMul(a, printed)
  first = DequantizeLinear<axis = 1>(codes, s, o)
  again = QuantizeLinear<axis = 1>(first, s, o)
  second = DequantizeLinear<axis = 1>(again, s, o)
  y = MatMul(b, second)
"""
GIVEN = {"BoundMask": (-50.0,), "SpellAttention": (-50.0,), "CacheInPlace": (8, ())}
OTHER_INPUTS = {"CacheInPlace", "ToHalf"}
"""a slot to write to; float16: their own tests run them"""


def model() -> ir.Model:
    rng = np.random.default_rng(2)
    codes = rng.integers(-128, 128, (8, 8)).astype(np.int8)
    return graphs.parse(BODY, "float[1,3,8] x", "float[1,3,8] y", codes=codes, o=np.zeros(8, np.int8),
                        s=rng.uniform(0.01, 0.02, 8).astype(np.float32), weight=graphs.rows(8, 8))


def passes() -> dict[str, Callable[[ir.Model], object]]:
    """Every pass that there is, so that none is forgotten."""
    found: dict[str, Callable[[ir.Model], object]] = {"fold": fold}
    for info in pkgutil.iter_modules(edgeforge.graph.__path__, "edgeforge.graph."):
        for name, kind in vars(importlib.import_module(info.name)).items():
            if isinstance(kind, type) and issubclass(kind, ir.passes.InPlacePass) and kind.__module__ == info.name:
                found[name] = kind(*GIVEN.get(name, ()))
    return found


PASSES = passes()


@pytest.mark.parametrize("name", PASSES)
def test_every_weight_keeps_its_grid(name: str) -> None:
    given = model()
    data = graphs.feeds(given)
    before = graphs.run(given, data)
    made = PASSES[name](given)
    after = made if isinstance(made, ir.Model) else given
    if name not in OTHER_INPUTS:
        assert [v.name for v in after.graph.inputs] == ["x"]
        graphs.same(before, graphs.run(after, data), 1e-6)
    weights = [node.inputs[1] for node in after.graph if node.op_type == "MatMul"]
    assert len(weights) == 3
    for weight in weights:
        node = edit.producer(weight, "DequantizeLinear")
        assert node is not None, f"{weight and weight.name} has lost its Dequantize"
        codes = node.inputs[0]
        assert codes is not None
        assert codes.dtype == ir.DataType.INT8


@pytest.mark.parametrize("rewrite", [FoldConstants(), lambda m: optimize(m, HTP)], ids=["FoldConstants", "optimize"])
def test_every_way_ends_as_one_static_weight(rewrite: Callable[[ir.Model], object]) -> None:
    """Codes -> Dequantize is left of Dequantize -> Quantize -> Dequantize and of float -> Quantize -> Dequantize."""
    given = model()
    data, codes = graphs.feeds(given), edit.constant(given.graph.initializers["codes"])
    before = graphs.run(given, data)
    rewrite(given)
    graphs.same(before, graphs.run(given, data), 1e-6)
    assert [v.name for v in given.graph.inputs] == ["x"]
    assert set(graphs.ops(given)) == {"DequantizeLinear", "MatMul"}
    makers = [edit.producer(n.inputs[1], "DequantizeLinear") for n in given.graph if n.op_type == "MatMul"]
    found = [edit.constant(node.inputs[0]) for node in makers if node is not None]
    assert [a is not None and a.dtype == np.int8 for a in found] == [True, True, True]
    np.testing.assert_array_equal(found[0], codes)
    np.testing.assert_array_equal(found[2], codes)
