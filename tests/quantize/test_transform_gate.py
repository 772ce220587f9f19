"""Transforms are exact: their gate leaves room for float32, and none for a mistake."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from builds import variant
from tiny_build import Built

from edgeforge import gates, pipeline, recipe, source
from edgeforge.errors import GateError
from edgeforge.quantize import rotate
from edgeforge.quantize.parameters import get, put
from edgeforge.stages import transform


def test_what_float32_leaves_passes_and_is_said_beside_what_was_there(built: Built) -> None:
    (event,) = (e for e in built.events if e.stage == "transform" and e.kind == "done")
    for check in (c for c in event.checks if c.gate):
        assert (check.gate, check.threshold, check.passed) == ("transform_db", 100, True)
        assert re.fullmatch(r"1\d\d\.\d dB before", check.note)


def test_gains_that_are_a_thousandth_off_do_not(built: Built, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Some 64 dB, which 55 let through."""
    exact = rotate.rotate

    def careless(model: ir.Model, direction: np.ndarray | None = None) -> int:
        width = exact(model, direction)
        gain = model.graph.initializers["model.layers.0.input_layernorm.weight"]
        put(gain, get(gain) * np.linspace(1, 1.001, width))
        return width

    monkeypatch.setattr(rotate, "rotate", careless)
    wanted = recipe.load(variant(built, "careless", quantize={"transforms": ["rotate"]}))
    job = pipeline.start(wanted, source.open_source(wanted.model))
    found = transform.run(job, {name: built.artifact(name) for name in ("adapt", "optimize", "text")}, tmp_path)
    with pytest.raises(GateError) as caught:
        gates.require("transform", gates.judged(found, wanted.limits), "")
    assert re.search(r"decode logits 6\d\.?\d* dB \(at least 100\): 1\d\d\.\d dB before", caught.value.message)
