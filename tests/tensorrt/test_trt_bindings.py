"""The calls that builder and device make exist in the real bindings, under these names and with these arguments."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest

trt: Any = pytest.importorskip("tensorrt_rtx")
sys.path.insert(0, str(Path(__file__).parents[2] / "runtimes" / "tests"))

BUILDER = {
    "Builder": ("create_network", "create_builder_config", "create_optimization_profile", "build_serialized_network"),
    "OnnxParser": ("parse_from_file", "get_error", "num_errors"),
    "ParserError": ("node_name", "node_operator", "desc"),
    "INetworkDefinition": ("get_layer", "num_layers"), "IAttentionInputLayer": ("attention",),
    "IAttention": ("decomposable",), "IOptimizationProfile": ("set_shape",),
    "IBuilderConfig": ("profiling_verbosity", "add_optimization_profile", "num_compute_capabilities",
                       "set_compute_capability")}
"""what worker.py calls; the two of compute capabilities only where the module has them"""


@pytest.mark.parametrize(("kind", "names"), BUILDER.items())
def test_the_builders_calls(kind: str, names: tuple[str, ...]) -> None:
    assert [n for n in names if not hasattr(getattr(trt, kind), n)] == []


def test_the_names_that_are_looked_up() -> None:
    assert trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED is not None
    assert trt.ProfilingVerbosity.DETAILED is not None
    assert {"SM75", "SM80", "SM86", "SM89", "SM120", "SM121"} <= set(trt.ComputeCapability.__members__)
    assert int(trt.ILogger.WARNING) < int(trt.ILogger.INFO)


def test_the_devices_calls_are_those_of_its_stand_in() -> None:
    """Every method of the stand-in, with its arguments' names, is in the bindings' own signature."""
    import test_runtime_trt as stand_in

    for fake, real in ((stand_in.FakeContext, trt.IExecutionContext), (stand_in.FakeEngine, trt.ICudaEngine)):
        for name, method in inspect.getmembers(fake, inspect.isfunction):
            if name.startswith("_"):
                continue
            written = re.findall(rf"{name}\((self: .*?)\) ->", getattr(real, name).__doc__ or "")
            theirs = [re.findall(r"(\w+): ", signature) for signature in written]
            mine = list(inspect.signature(method).parameters)
            assert mine in [names[: len(mine)] for names in theirs], f"{name}: {written}"
    assert "num_io_tensors" in dir(trt.ICudaEngine)
    assert callable(trt.nptype)
    assert trt.nptype(trt.DataType.HALF).__name__ == "float16"
    assert trt.Logger.WARNING is not None
    assert "deserialize_cuda_engine" in dir(trt.Runtime)
