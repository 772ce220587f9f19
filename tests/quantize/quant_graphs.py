"""Small graphs and a tiny decoder for the tests of quantization."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime as ort
import tiny
from edgeforge_runtime.executors.cpu import exact_options
from onnx_ir.passes import common

from edgeforge.graph import store
from edgeforge.graph.optimize import optimize
from edgeforge.targets import HTP

Array = npt.NDArray[Any]


@functools.cache
def adapted(family: str, **changes: Any) -> tuple[tiny.Adapted, ir.Model]:
    """A tiny decoder through adapt and optimize; clone the graph before changing it."""
    made = tiny.adapt(tiny.model(family, **changes), HTP)
    return made, optimize(made.model.clone(), HTP)


def parse(body: str, inputs: str, outputs: str, **parameters: Array) -> ir.Model:
    """A model of opset 23 with inferred shapes; parameters are initializers."""
    text = f'<ir_version: 10, opset_import: ["" : 23]> g ({inputs}) => ({outputs}) {{ {body} }}'
    model = ir.from_onnx_text(text, initializers=[ir.tensor(a, name=n) for n, a in parameters.items()])
    common.ShapeInferencePass()(model)
    return model


def run(model: ir.Model, folder: Path, feeds: dict[str, Array]) -> dict[str, Array]:
    """Saves model, loads it again and runs it without optimisation."""
    folder.mkdir(parents=True, exist_ok=True)
    session = ort.InferenceSession(str(store.save(model, folder)), exact_options(),
                                   providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def prefill(made: tiny.Adapted, width: int = 16) -> dict[str, Array]:
    """Feeds of one prefill call behind an empty (zero) past of two tokens, at any positions."""
    rng = np.random.default_rng(5)
    shapes = made.decoder.shapes(width, width + 2)
    feeds: dict[str, Array] = {n: np.zeros(shapes[n], np.float32) for n in made.decoder.input_names()}
    angles = rng.uniform(0, 6, shapes["position_ids_cos"])
    return feeds | {
        "input_ids": rng.integers(3, made.decoder.vocab, (1, width)).astype(np.int32),
        "position_ids_cos": np.cos(angles).astype(np.float32),
        "position_ids_sin": np.sin(angles).astype(np.float32)}


def wave(*shape: int, scale: float, step: float = 0.7) -> Array:
    """Numbers by a formula: scale * sin(step * n^1.1) * (1 + n mod 5) / 5."""
    n = np.arange(int(np.prod(shape)))
    return (scale * np.sin(step * n**1.1) * (1 + n % 5) / 5).astype(np.float32).reshape(shape)


def aimet_model() -> ir.Model:
    """A convolution, a MatMul named `blocks` and another: what AIMET made test_vectors/aimet/theirs-* of."""
    made = parse("""
        t = Transpose<perm = [0, 3, 1, 2]>(x)
        c = Conv(t, w1)
        u = Transpose<perm = [0, 2, 3, 1]>(c)
        s = Sigmoid(u)
        p = Mul(u, s)
        m = MatMul(p, w2)
        h = Tanh(m)
        y = MatMul(h, w3)
        """, "float[1, 1, 6, 32] x", "float[1, 1, 6, 5] y", w1=wave(48, 32, 1, 1, scale=0.3),
                 w2=wave(48, 64, scale=0.2, step=0.3), w3=wave(64, 5, scale=0.4, step=0.9))
    for node in made.graph:
        node.name = "blocks" if node.outputs[0].name == "m" else f"{node.outputs[0].name}_op"
    return made
