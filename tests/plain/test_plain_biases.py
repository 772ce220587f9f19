"""Biases beside small weights and small inputs: what 32 bits did not hold was cut off without a word."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import plain_models as models
import pytest

from edgeforge import pipeline, recipe
from edgeforge.pipeline import Event

RNG = np.random.default_rng(0)
DEPTHWISE = RNG.normal(size=(8, 1, 3, 3)).astype(np.float32)
DEPTHWISE[2] *= 1e-9  # as a batch norm leaves a channel that training gave up


@pytest.mark.parametrize(("body", "shape", "weight", "size", "more"), [
    ("y = Conv(x, w, b)", (1, 8, 4, 4), 0.02 * RNG.normal(size=(8, 8, 1, 1)), 1, "quantize: {weights: 16}"),
    ("y = Conv<group = 8, pads = [1, 1, 1, 1]>(x, w, b)", (1, 8, 4, 4), DEPTHWISE, 1, ""),
    ("t = LayerNormalization(x, w, b) y = Relu(t)", (1, 16, 8), RNG.normal(size=8), 0.01, "")],
    ids=["16-bit weights", "a dead channel", "a norm of small inputs"])
def test_biases_arrive_on_the_accelerator(body: str, shape: tuple[int, ...], weight: np.ndarray, size: float, more: str,
                                          tmp_path: Path) -> None:
    """0.7, 13.9 and 0.3 dB at the gate of quantize."""
    dims = ",".join(map(str, shape))
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> '
                                    f"g (float[{dims}] x) => (float[{dims}] y) {{ {body} }}")
    for name, array in (("w", weight), ("b", 2 * RNG.normal(size=8))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    (tmp_path / "f.onnx").write_bytes(model.SerializeToString())
    samples = {"x": (size * RNG.uniform(-1, 1, (16, *shape))).astype(np.float32)}
    events: list[Event] = []
    pipeline.build(recipe.load(models.recipe(tmp_path, tmp_path / "f.onnx", samples, more)), events.append)
    figures = {c.name: c.value for e in events for c in e.checks}
    assert figures["quantize: y"] > 40
    assert figures["compile: y, emulator against CPU"] > 60
