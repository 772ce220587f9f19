"""The calls that builder and device make exist in the real bindings, under these names and with these arguments.

Of TensorRT-RTX, and of the enterprise edition, whose bindings (pip, `tensorrt-cu12-bindings`, 1.3 MB) load without its
libraries: three empty ones stand in for those.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "runtimes" / "tests"))

ASKED = {
    "Builder": ("create_network", "create_builder_config", "create_optimization_profile", "build_serialized_network"),
    "OnnxParser": ("parse_from_file", "get_error", "num_errors"),
    "ParserError": ("node_name", "node_operator", "desc"),
    "INetworkDefinition": ("get_layer", "num_layers"), "IAttentionInputLayer": ("attention",),
    "IAttention": ("decomposable",), "IOptimizationProfile": ("set_shape",),
    "IBuilderConfig": ("profiling_verbosity", "add_optimization_profile"),
    "NetworkDefinitionCreationFlag": ("STRONGLY_TYPED",), "ProfilingVerbosity": ("DETAILED",),
    "ILogger": ("WARNING", "INFO", "log"), "Logger": ("WARNING",), "Runtime": ("deserialize_cuda_engine",),
    "ICudaEngine": ("num_io_tensors",), "DataType": ("HALF",)}
"""what worker.py and the executor use of both editions, beside the stand-in's methods"""
RTX_ALONE = {"IBuilderConfig": ("num_compute_capabilities", "set_compute_capability"),
             "ComputeCapability": ("SM75", "SM80", "SM86", "SM89", "SM120", "SM121")}
SEEN = """
import json, sys
trt = __import__(sys.argv[1])
asked, methods = json.load(sys.stdin)
print(json.dumps({
    "missing": [f"{k}.{n}" for k, names in asked.items() for n in names if not hasattr(getattr(trt, k, None), n)],
    "docs": {f"{k}.{n}": getattr(getattr(trt, k), n).__doc__ or "" for k, names in methods.items() for n in names},
    "half": trt.nptype(trt.DataType.HALF).__name__, "version": trt.__version__,
    "order": int(trt.ILogger.WARNING) < int(trt.ILogger.INFO)}))
"""
LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")
FUNCTIONS = ("createInferBuilder_INTERNAL", "createInferRefitter_INTERNAL", "createInferRuntime_INTERNAL",
             "createNvOnnxParser_INTERNAL", "createNvOnnxParserRefitter_INTERNAL", "getBuilderPluginRegistry",
             "getNvOnnxParserVersion", "getPluginRegistry", "initLibNvInferPlugins")


def _methods() -> dict[str, dict[str, list[str]]]:
    """Of the executor's stand-ins: class, method, its arguments' names."""
    import test_runtime_trt as stand_in

    return {real: {name: list(inspect.signature(method).parameters)
                   for name, method in inspect.getmembers(fake, inspect.isfunction) if not name.startswith("_")}
            for fake, real in ((stand_in.FakeContext, "IExecutionContext"), (stand_in.FakeEngine, "ICudaEngine"))}


def _wants(module: str, asked: dict[str, tuple[str, ...]], environment: dict[str, str]) -> dict[str, Any]:
    methods = {kind: list(names) for kind, names in _methods().items()}
    done = subprocess.run([sys.executable, "-c", SEEN, module], input=json.dumps([asked, methods]), text=True,
                          capture_output=True, env=os.environ | environment, timeout=60)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _stubs(folder: Path, compiler: str, generation: str) -> None:
    source = folder / "empty.c"
    source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in FUNCTIONS), encoding="utf-8")
    for name in LIBRARIES:
        file = f"lib{name}.so.{generation}"
        subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(folder / file), f"-Wl,-soname,{file}"],
                       check=True)


@cache
def _rtx() -> dict[str, Any]:
    pytest.importorskip("tensorrt_rtx")
    return _wants("tensorrt_rtx", ASKED | {k: (*ASKED.get(k, ()), *names) for k, names in RTX_ALONE.items()}, {})


@pytest.fixture(params=["tensorrt_rtx", "tensorrt_bindings"])
def bindings(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "tensorrt_rtx":
        return _rtx()
    found, compiler = importlib.util.find_spec("tensorrt_bindings"), shutil.which("cc")
    if found is None or found.origin is None or compiler is None:
        pytest.skip("the enterprise edition's bindings are not installed, or there is no C compiler")
    needs = re.search(rb"libnvinfer\.so\.(\d+)", Path(found.origin).with_name("tensorrt.so").read_bytes())
    assert needs is not None
    _stubs(tmp_path, compiler, needs[1].decode())
    return _wants("tensorrt_bindings", ASKED, {"LD_LIBRARY_PATH": str(tmp_path)})


def test_every_name_is_there(bindings: dict[str, Any]) -> None:
    assert bindings["missing"] == []
    assert (bindings["half"], bindings["order"]) == ("float16", True)


def test_the_devices_calls_are_those_of_its_stand_in(bindings: dict[str, Any]) -> None:
    """Every method of the stand-in, with its arguments' names, is in the bindings' own signature."""
    for kind, methods in _methods().items():
        for name, mine in methods.items():
            written = re.findall(rf"{name}\((self: .*?)\) ->", bindings["docs"][f"{kind}.{name}"])
            theirs = [re.findall(r"(\w+): ", signature) for signature in written]
            assert mine in [names[: len(mine)] for names in theirs], f"{kind}.{name}: {written}"
