"""Small graphs from ONNX text, and their outputs on onnxruntime: what every pass's test needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx_ir.passes import common

Array = npt.NDArray[Any]


def parse(body: str, inputs: str, outputs: str, **parameters: Array) -> ir.Model:
    """A model of opset 23 with inferred shapes; parameters are initializers (`__` in a name stands for `.`)."""
    text = f'<ir_version: 10, opset_import: ["" : 23]> agraph ({inputs}) => ({outputs}) {{ {body} }}'
    tensors = [ir.tensor(a, name=n.replace("__", ".")) for n, a in parameters.items()]
    model = ir.from_onnx_text(text, initializers=tensors)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.ShapeInferencePass()(model)
    return model


def run(model: ir.Model, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Checked, and run without any optimisation."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def feeds(model: ir.Model, **dims: int) -> dict[str, Array]:
    """Random float inputs; symbolic dimensions by name."""
    rng = np.random.default_rng(3)
    found = {}
    for value in model.graph.inputs:
        assert value.shape is not None
        shape = [d if isinstance(d, int) else dims[str(d.value)] for d in value.shape]
        found[str(value.name)] = rng.normal(size=shape).astype(np.float32)
    return found


def ops(model: ir.Model) -> list[str]:
    """Op types in graph order."""
    return [n.op_type for n in model.graph]


def same(before: Mapping[str, Array], after: Mapping[str, Array], rtol: float = 1e-5) -> None:
    """The same outputs under the same names, in the same order."""
    assert list(before) == list(after)
    for name, array in before.items():
        assert array.shape == after[name].shape, name
        np.testing.assert_allclose(after[name], array, rtol=rtol, atol=rtol)


def apply(rewrite: Any, model: ir.Model, rtol: float = 1e-5, **dims: int) -> bool:
    """Runs a pass twice: outputs stay what they are, names stay unique, the second run changes nothing.

    Returns whether the first run reported a change.
    """
    data = feeds(model, **dims)
    before = run(model, data)
    first = rewrite(model)
    same(before, run(model, data), rtol)
    text = str(model.graph)
    names = [v.name for n in model.graph for v in n.outputs] + list(model.graph.initializers)
    assert len(set(names)) == len(names)
    assert all(o.shape is not None for n in model.graph for o in n.outputs)
    assert not rewrite(model).modified
    assert str(model.graph) == text
    return bool(first.modified)


def rows(*shape: int, seed: int = 5) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)
