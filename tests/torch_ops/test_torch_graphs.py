"""Graphs that are no decoders, gradients, and what is not evaluated."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
import torch_graphs as tg

from edgeforge.errors import UnsupportedError
from edgeforge.graph import enter, legal
from edgeforge.graph.optimize_plain import optimize
from edgeforge.metrics import sqnr_db
from edgeforge.targets import HTP
from edgeforge.torch_ops import OPS, evaluate

sys.path.insert(0, str(Path(__file__).parent.parent / "plain"))

import plain_models as models


@pytest.mark.parametrize("network", ["cnn", "sdpa", "eager"])
def test_networks_that_are_no_decoders(network: str, tmp_path: Path) -> None:
    if network == "cnn":
        samples = models.images(1)
        path = models.export(models.cnn(), samples, tmp_path / "cnn.onnx")
    else:
        samples = models.sentences(1)
        path = models.export(models.encoder(network), samples, tmp_path / "encoder.onnx",
                             17 if network == "eager" else 23)
    model = optimize(enter.read(path), HTP)
    feeds = {n: a[0] if network == "cnn" else a[0].astype(np.int32) for n, a in samples.items()}
    made, expected = tg.interpret(model.graph, feeds), tg.reference(model, feeds)
    assert set(made) == set(expected)
    assert min(sqnr_db(expected[n], made[n]) for n in expected) > 100


def test_whatever_a_graph_may_hold_after_optimize_is_evaluated() -> None:
    """Quantizers apart: enter refuses graphs that have some."""
    assert legal._OPS - {"QuantizeLinear", "DequantizeLinear"} <= set(OPS)


def _node(op: str, inputs: list[str], **attributes: object) -> ir.Node:
    values = {name: ir.Value(name=name) for name in inputs}
    return ir.node(op, list(values.values()), attributes, outputs=[ir.Value(name="made")])


def test_gradients_flow_through_a_chain() -> None:
    """Conv (1x1, on a view) -> RMSNormalization -> Softmax -> MatMul, in float64 against differences."""
    generator = torch.Generator().manual_seed(0)
    x, w, b, g, v = (torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
                     for shape in ((1, 1, 3, 4), (5, 4, 1, 1), (5,), (5,), (1, 1, 5, 2)))

    def chain(*tensors: torch.Tensor) -> torch.Tensor:
        x, w, b, g, v = tensors
        turned, = evaluate(_node("Transpose", ["x"], perm=[0, 3, 1, 2]), [x])
        made, = evaluate(_node("Conv", ["x", "w", "b"]), [turned, w, b])
        back, = evaluate(_node("Transpose", ["x"], perm=[0, 2, 3, 1]), [made])
        even, = evaluate(_node("RMSNormalization", ["x", "g"]), [back, g])
        weights, = evaluate(_node("Softmax", ["x"]), [even])
        return evaluate(_node("MatMul", ["a", "b"]), [weights, v])[0]

    assert torch.autograd.gradcheck(chain, (x, w, b, g, v))


@pytest.mark.parametrize(("op", "attributes"), [
    ("Gelu", {}), ("Swish", {"alpha": 1.5}), ("Clip", {}), ("HardSigmoid", {}), ("LogSoftmax", {}),
    ("ReduceMax", {}), ("LpNormalization", {}), ("DepthToSpace", {"blocksize": 2}),
    ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}), ("MaxPool", {"kernel_shape": [2, 2]})])
def test_single_operators_have_gradients(op: str, attributes: dict[str, object]) -> None:
    x = torch.randn(1, 4, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: evaluate(_node(op, ["x"], **attributes), [x])[0], (x,))


def test_what_is_not_there_is_named() -> None:
    node = _node("Einsum", ["x"], equation="ii->i")
    with pytest.raises(UnsupportedError, match="made: op Einsum is not evaluated in torch"):
        evaluate(node, [torch.eye(2)])
    foreign = ir.node("Add", [ir.Value(name="a"), ir.Value(name="b")], domain="com.maker",
                      outputs=[ir.Value(name="sum")])
    with pytest.raises(UnsupportedError, match=r"sum: op com\.maker\.Add"):
        evaluate(foreign, [torch.eye(2), torch.eye(2)])
