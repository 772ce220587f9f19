"""A second vendor takes the IR as it is: the plain profile's graph, int4 weights, float16, prefill and decode.

A spike, not a backend: it shows that nothing in the graph is Qualcomm's. The engine is built here, not run.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
import tiny

from edgeforge.graph import edit, store
from edgeforge.graph.optimize import optimize
from edgeforge.targets import PLAIN

pytest.importorskip("tensorrt_rtx")

BLOCK, CONTEXT, PREFILL = 64, 64, 32
_HALF, _FULL = ir.DataType.FLOAT16, ir.DataType.FLOAT


def lower(model: ir.Model) -> list[str]:
    """In place: projection weights [N, K] become int4 blocks along K behind a DequantizeLinear, reals float16.

    Returns the weights' names. RMSNormalization, RotaryEmbedding and everything else stay as they are.
    """
    graph, quantized = model.graph, []
    for node in list(graph):
        turn = edit.producer(node.inputs[1], "Transpose") if node.op_type == "MatMul" else None
        weight = turn.inputs[0] if turn is not None else None
        array = edit.constant(weight)
        if turn is None or weight is None or array is None or len(list(weight.uses())) > 1:
            continue
        blocks = array.reshape(len(array), -1, BLOCK)
        scale = np.abs(blocks).max(-1) / 7
        codes = np.rint(blocks / scale[..., None]).reshape(array.shape).astype(ml_dtypes.int4)
        name = str(weight.name)
        graph.initializers.pop(name)
        parts = [edit.initializer(graph, name, codes), edit.initializer(graph, f"{name}/scale", scale)]
        real = edit.node_before(turn, "DequantizeLinear", parts, f"{name}/dq", list(array.shape),
                                [ir.AttrInt64("axis", 1), ir.AttrInt64("block_size", BLOCK)])
        real.type = ir.TensorType(_FULL)
        turn.replace_input_with(0, real)
        quantized.append(name)
    for value in list(graph.initializers.values()):
        if value.dtype == _FULL and value.const_value is not None:
            value.const_value = ir.tensor(value.const_value.numpy().astype(np.float16), name=value.name)
    for value in [*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs)]:
        if value.dtype == _FULL:
            value.type = ir.TensorType(_HALF)
    return quantized


@dataclass(frozen=True)
class Built:
    """How many weights went in as int4, and what the child said about the engine."""

    weights: int
    report: dict[str, Any]

    def section(self, start: str, end: str) -> str:
        """The part of the layer dump between two headings."""
        return str(self.report["layers"]).split(start, 1)[1].split(end, 1)[0]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    made = tiny.adapt(tiny.model("qwen3", hidden_size=128, intermediate_size=256, head_dim=32, num_hidden_layers=1),
                      PLAIN, CONTEXT)
    model = optimize(made.model, PLAIN)
    names = lower(model)
    assert len(names) == 8, "seven projections and the head"
    path = store.save(model, tmp_path_factory.mktemp("trt"))
    inputs = set(made.decoder.input_names())
    profiles = [{n: s for n, s in made.decoder.shapes(ar, CONTEXT).items() if n in inputs} for ar in (PREFILL, 1)]
    child = subprocess.run([sys.executable, str(Path(__file__).with_name("trt_worker.py")), str(path),
                            json.dumps(profiles)], capture_output=True, text=True, timeout=120, check=True)
    sizes = [v.const_value.size for n, v in model.graph.initializers.items() if n in names and v.const_value]
    return Built(sum(sizes), json.loads(child.stdout))


def test_the_engine_is_built(built: Built) -> None:
    assert built.report["bytes"] > 50_000, built.report["errors"]


@pytest.mark.parametrize("profile", [0, 1], ids=["prefill", "decode"])
def test_every_weight_is_still_int4(built: Built, profile: int) -> None:
    """Constants of each profile's layers, by number of elements: TensorRT fuses q, k, v and gate, up as it likes."""
    constant = re.compile(rf"Name: (\w+_dconst_myl{profile}), Dimensions: \[([\d,]+)\][^{{}}]*Datatype: Int4")
    found = dict(constant.findall(built.section("Layers:", "I/O Tensors:")))
    assert sum(math.prod(map(int, shape.split(","))) for shape in found.values()) == built.weights


def test_both_profiles_are_there(built: Built) -> None:
    boundary = built.section("I/O Tensors:", "Engine Metadata")
    (ids,) = [line for line in boundary.splitlines() if "input_ids" in line]
    for width in (PREFILL, 1):
        assert f"MinShape: [1,{width}], OptShape: [1,{width}], MaxShape: [1,{width}]" in ids
    assert all(f"Name: past_{kind}_0_{end}" in boundary for kind in ("key", "value") for end in ("in", "out"))
