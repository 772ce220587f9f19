"""The same encoder from every opset that torch writes, through every float pass and the quantizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import plain_models as models
import pytest

from edgeforge.graph import enter, store
from edgeforge.graph.optimize_plain import optimize
from edgeforge.metrics import sqnr_db
from edgeforge.targets import HTP


@pytest.mark.parametrize("opset", range(17, 25))
def test_an_encoder_of_this_opset_becomes_the_same_graph(opset: int, tmp_path: Path) -> None:
    samples = models.sentences(2)
    path = models.export(models.encoder(), samples, tmp_path / "encoder.onnx", opset)
    model = optimize(enter.read(path), HTP)
    ops = {n.op_type for n in model.graph}
    assert {"Gelu", "LayerNormalization", "Softmax", "Tanh"} <= ops
    assert not ops & {"Erf", "IsNaN", "GatherND", "Constant", "Shape"}
    folder = tmp_path / "float"
    folder.mkdir()
    feeds = {n: a[1] for n, a in samples.items()}
    expected = ort.InferenceSession(str(path)).run(None, feeds)
    narrow = {n: a.astype(np.int32) for n, a in feeds.items()}
    made = ort.InferenceSession(str(store.save(model, folder))).run(None, narrow)
    assert min(sqnr_db(a, b) for a, b in zip(expected, made, strict=True)) > 90
