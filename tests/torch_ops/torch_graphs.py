"""One node, or a whole graph, by torch_ops and by onnxruntime without optimisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
import torch

from edgeforge.torch_ops import evaluate

Array = npt.NDArray[Any]


def interpret(graph: ir.Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of graph, node by node; inputs must come out of every op as they went in."""
    known: dict[ir.Value | None, torch.Tensor | None] = {None: None}
    for value in graph.inputs:
        known[value] = torch.from_numpy(feeds[str(value.name)])
    for value in graph.initializers.values():
        assert value.const_value is not None
        known[value] = torch.tensor(value.const_value.numpy())
    for node in graph:
        made = evaluate(node, [known[v] for v in node.inputs])
        known.update(zip(node.outputs, made, strict=True))
    found = {str(v.name): known[v] for v in graph.outputs}
    return {name: tensor.numpy() for name, tensor in found.items() if tensor is not None}


def reference(model: ir.Model, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """onnxruntime's outputs."""
    return _run(ir.to_proto(model), feeds)


def _run(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def both(op: str, inputs: Sequence[Array | None], outputs: int = 1, opset: int = 23,
         **attributes: Any) -> tuple[list[Array], list[Array]]:
    """(torch, onnxruntime): what one node makes of inputs."""
    inputs = [None if a is None else np.asarray(a) for a in inputs]
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    feeds = {n: a for n, a in zip(names, inputs, strict=True) if a is not None}
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op, names, [f"y{i}" for i in range(outputs)], name="node", **attributes)], "one",
        [onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
         for n, a in feeds.items()],
        [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)])
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10)
    expected = list(_run(proto, feeds).values())
    given = [None if a is None else torch.from_numpy(a.copy()) for a in inputs]
    made = evaluate(ir.from_proto(proto).graph.node(0), given)
    for tensor, array in zip(given, inputs, strict=True):
        assert tensor is None or np.array_equal(tensor.numpy(), array, equal_nan=True), "an input was changed"
    return [t.detach().numpy() for t in made], expected


def check(op: str, inputs: Sequence[Array | None], outputs: int = 1, opset: int = 23, tolerance: float = 2e-6,
          **attributes: Any) -> None:
    """The same shapes, types and numbers."""
    made, expected = both(op, inputs, outputs, opset, **attributes)
    assert len(made) == len(expected)
    for a, b in zip(made, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=10 * tolerance, atol=tolerance)


def floats(*shape: int, seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng(seed).normal(size=shape), np.float32)


def integers(*values: int) -> Array:
    return np.array(values, np.int64)
