"""The executor for packages on a Mac, before a stand-in that has coremltools' signatures and answers with a sum.

No Mac is here: what can be held is which call is made with what, and that coremltools 9.0 takes such calls.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edgeforge_runtime.errors import ExecutorError
from edgeforge_runtime.executors import known, open_executor
from edgeforge_runtime.executors.coreml import CoreMLExecutor, package
from edgeforge_runtime.manifest import COS, IDS, LOGITS, MASK, SIN, WRITE, Graph, Part, Target, Tensor

MODEL = "Data/com.apple.CoreML/model.mlmodel"
Calls = list[tuple[Any, ...]]


class Units(Enum):
    """ct.ComputeUnit."""

    CPU_AND_NE = "ne"
    CPU_AND_GPU = "gpu"


class StandIn:
    """coremltools, as far as the executor calls it; every call is written down."""

    ComputeUnit = Units

    def __init__(self, calls: Calls, fails: str = "") -> None:
        self.calls, self.fails = calls, fails
        self.models = self
        self.utils = self

    def compile_model(self, model: str, destination_path: str | None = None) -> str:
        self.calls.append(("compile", Path(model).name))
        if self.fails == "compile":
            raise RuntimeError("ANECCompile() FAILED")
        return str(destination_path)

    def CompiledMLModel(self, path: str, compute_units: Any = None, function_name: str | None = None) -> StandInModel:
        self.calls.append(("load", Path(path).name, compute_units, function_name))
        if self.fails == "load":
            raise RuntimeError("Unable to load model")
        return StandInModel(self, str(function_name))


class StandInModel:
    def __init__(self, ct: StandIn, function: str) -> None:
        self._ct, self._function = ct, function

    def make_state(self) -> str:
        self._ct.calls.append(("state", self._function))
        return "state"

    def predict(self, data: dict[str, Any], state: Any = None) -> dict[str, Any]:
        self._ct.calls.append(("predict", self._function, sorted(data), state))
        if self._ct.fails == "predict":
            raise RuntimeError("no")
        if "handover_1" not in data:
            return {"handover_1": np.full((1, 2), data[IDS].sum(), np.float16)}
        rows = data["handover_1"][0, 0]
        return {f"{LOGITS}_0": np.full((1, 1, 3), rows, np.float16), f"{LOGITS}_1": np.full((1, 1, 2), 7, np.float16)}


def target(state: bool) -> Target:
    """Two packages and two widths."""
    graphs = []
    for name, ar in (("prefill", 4), ("decode", 1)):
        slot = (Tensor(WRITE, "int32", (1,)),) if state else ()
        ids, hidden = Tensor(IDS, "int32", (1, ar)), Tensor("handover_1", "float16", (1, 2))
        rest = [Tensor(MASK, "float16", (1, 1, ar, 8)), Tensor(COS, "float16", (1, 1, ar, 2)),
                Tensor(SIN, "float16", (1, 1, ar, 2))]
        logits = Tensor(LOGITS, "float16", (1, 1, 5))
        graphs.append(Graph(ar, 8, (Part(f"device/a.mlpackage/{MODEL}", name, (ids,), (hidden,)),
                                    Part(f"device/b.mlpackage/{MODEL}", name, (hidden, *rest, *slot), (logits,)))))
    return Target("coreml", tuple(graphs), {"units": "CPU_AND_GPU"})


def feeds(graph: Graph) -> dict[str, Any]:
    return {name: np.ones(t.shape, t.dtype) for name, t in graph.boundary()[0].items()}


@pytest.mark.parametrize("state", [False, True])
def test_packages_run_in_order_and_a_state_serves_all_functions(state: bool, tmp_path: Path) -> None:
    calls: Calls = []
    own = target(state)
    executor = CoreMLExecutor(own, tmp_path, StandIn(calls))
    loaded = calls[:]
    assert [c for c in loaded if c[0] == "compile"] == [("compile", "a.mlpackage"), ("compile", "b.mlpackage")]
    assert [c[1:] for c in loaded if c[0] == "load"] == [(f"{i}.mlmodelc", Units.CPU_AND_GPU, function) for function in
                                                        ("prefill", "decode") for i in (0, 1)]
    assert [c for c in loaded if c[0] == "state"] == ([("state", "prefill")] if state else [])
    for graph in own.graphs:
        made = executor.run(graph, feeds(graph))
        assert set(made) == {LOGITS}
        np.testing.assert_array_equal(made[LOGITS].ravel(), [graph.ar] * 3 + [7, 7])
    predicted = [c for c in calls if c[0] == "predict"]
    assert [c[1] for c in predicted] == ["prefill", "prefill", "decode", "decode"]
    assert {c[3] for c in predicted if MASK in c[2]} == {"state" if state else None}
    assert {c[3] for c in predicted if MASK not in c[2]} == {None}
    executor.close()
    with pytest.raises(ExecutorError, match="closed"):
        executor.run(own.graphs[0], feeds(own.graphs[0]))


def test_what_core_ml_says_is_the_message(tmp_path: Path) -> None:
    with pytest.raises(ExecutorError, match=r"a\.mlpackage does not compile: ANECCompile"):
        CoreMLExecutor(target(False), tmp_path, StandIn([], "compile"))
    own = target(False)
    with pytest.raises(ExecutorError, match="prefill of device/a.mlpackage.* does not load: Unable to load"):
        CoreMLExecutor(own, tmp_path, StandIn([], "load"))
    with pytest.raises(ExecutorError, match="'TPU' are unknown to Core ML; it has CPU_AND_NE, CPU_AND_GPU"):
        CoreMLExecutor(dataclasses.replace(own, options={"units": "TPU"}), tmp_path, StandIn([]))
    with pytest.raises(ExecutorError, match="prefill of device/a.mlpackage"):
        CoreMLExecutor(own, tmp_path, StandIn([], "predict")).run(own.graphs[0], feeds(own.graphs[0]))
    with pytest.raises(ExecutorError, match="lies in no .mlpackage"):
        package(tmp_path / "model.onnx")


@pytest.mark.skipif(sys.platform == "darwin", reason="there it runs")
def test_elsewhere_it_says_where_it_runs(tmp_path: Path) -> None:
    assert "coreml" not in known()
    for name in ("a", "b"):
        file = tmp_path / "device" / f"{name}.mlpackage" / MODEL
        file.parent.mkdir(parents=True)
        file.touch()
    with pytest.raises(ExecutorError, match="macOS only"):
        open_executor(target(False), tmp_path)


def test_coremltools_takes_these_calls() -> None:
    """As far as Linux has it: the stand-in's arguments are the real ones', by name."""
    logging.disable(logging.ERROR)
    try:
        real = pytest.importorskip("coremltools")
    finally:
        logging.disable(logging.NOTSET)
    for mine, theirs in ((StandIn.compile_model, real.models.utils.compile_model),
                         (StandIn.CompiledMLModel, real.models.CompiledMLModel),
                         (StandInModel.predict, real.models.CompiledMLModel.predict),
                         (StandInModel.make_state, real.models.CompiledMLModel.make_state)):
        wanted = [n for n in inspect.signature(mine).parameters if n != "self"]
        taken = [n for n in inspect.signature(theirs).parameters if n != "self"]
        assert set(wanted) <= set(taken), theirs
        assert wanted[0:1] == taken[0:1]
    assert {u.name for u in StandIn.ComputeUnit} <= {u.name for u in real.ComputeUnit}
