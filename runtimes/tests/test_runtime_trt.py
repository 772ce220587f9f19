"""The executor for TensorRT engines, before a stand-in for TensorRT and CUDA that writes down every call.

No GPU is here, so what can be held is the order: what is bound before what runs, that caches are bound once as input
and output of every profile, and that decode is captured once and replayed.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from edgeforge_runtime.errors import ExecutorError
from edgeforge_runtime.executors import open_executor
from edgeforge_runtime.executors.trt import TrtExecutor
from edgeforge_runtime.executors.trt_device import CudaDevice
from edgeforge_runtime.manifest import COS, IDS, LOGITS, MASK, SIN, WRITE, Graph, Part, Target, Tensor

CUDA_CALLS = {
    "cudaStreamCreate": (), "cudaMalloc": ("size",), "cudaMemsetAsync": ("devPtr", "value", "count", "stream"),
    "cudaMemcpyAsync": ("dst", "src", "count", "kind", "stream"), "cudaStreamBeginCapture": ("stream", "mode"),
    "cudaStreamEndCapture": ("stream",), "cudaGraphInstantiate": ("graph", "flags"), "cudaGraphDestroy": ("graph",),
    "cudaGraphLaunch": ("graphExec", "stream"), "cudaStreamSynchronize": ("stream",),
    "cudaGraphExecDestroy": ("graphExec",), "cudaFree": ("devPtr",), "cudaStreamDestroy": ("stream",)}
"""cuda.bindings.runtime of cuda-bindings 12.9.10, each with its arguments; the last test reads them there"""
CL, VOCAB = 16, 8
CACHES = ("past_key_0", "past_value_0")
Calls = list[tuple[Any, ...]]


class FakeContext:
    def __init__(self, calls: Calls, fails: str) -> None:
        self._calls, self._fails = calls, fails

    def _say(self, *call: Any) -> bool:
        self._calls.append(call)
        return call[0] != self._fails

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        return self._say("profile", profile_index)

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        return self._say("shape", name, tuple(shape))

    def set_tensor_address(self, name: str, memory: int) -> bool:
        return self._say("bind", name, memory)

    def execute_async_v3(self, stream_handle: int) -> bool:
        return self._say("run", stream_handle)


class FakeEngine:
    def __init__(self, calls: Calls, fails: str) -> None:
        self._calls, self._fails = calls, fails
        self._names = [IDS, MASK, COS, SIN, WRITE, *(f"{c}_in" for c in CACHES), LOGITS, *(f"{c}_out" for c in CACHES)]
        self.num_io_tensors = len(self._names)

    def get_tensor_name(self, index: int) -> str:
        return self._names[index]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (1, 2, CL, 4)

    def get_tensor_dtype(self, name: str) -> str:
        return "HALF"

    def create_execution_context(self) -> FakeContext | None:
        self._calls.append(("context",))
        return None if self._fails == "context" else FakeContext(self._calls, self._fails)


class FakeTrt:
    """Of the bindings, what the executor calls: tests/tensorrt holds these names against the real ones."""

    __name__, __version__ = "tensorrt_rtx", "1.7.1.116"

    def __init__(self, calls: Calls, fails: str = "") -> None:
        self._calls, self._fails = calls, fails
        outer = self

        class Logger:
            WARNING = 2

            def __init__(self, severity: int) -> None:
                pass

        class Runtime:
            def __init__(self, logger: Logger) -> None:
                pass

            def deserialize_cuda_engine(self, serialized_engine: bytes) -> FakeEngine | None:
                return None if outer._fails == "load" else FakeEngine(outer._calls, outer._fails)

        self.Logger, self.Runtime = Logger, Runtime

    def nptype(self, kind: str) -> type:
        return np.float16


class FakeDevice:
    """See Device; a download is the vocabulary's codes, so that shapes can be told apart."""

    stream = 7

    def __init__(self, calls: Calls) -> None:
        self._calls, self._next = calls, 0x1000

    def allocate(self, size: int) -> int:
        self._next += 0x1000
        self._calls.append(("allocate", size, self._next))
        return self._next

    def upload(self, address: int, array: np.ndarray) -> None:
        self._calls.append(("upload", address, array.shape))

    def download(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        self._calls.append(("download", address))
        return np.zeros(shape, dtype)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self._calls.append(("capture",))
        work()
        self._calls.append(("captured",))
        return lambda: self._calls.append(("launch",))

    def synchronize(self) -> None:
        self._calls.append(("synchronize",))

    def close(self) -> None:
        self._calls.append(("close",))


def _graph(ar: int, profile: int, file: str = "device/model.engine") -> Graph:
    rope = (Tensor(name, "float16", (1, 1, ar, 2)) for name in (COS, SIN))
    mask, write = Tensor(MASK, "float16", (1, 1, ar, CL)), Tensor(WRITE, "int64", (1,))
    inputs = (Tensor(IDS, "int32", (1, ar)), mask, *rope, write)
    return Graph(ar, CL, (Part(file, f"profile_{profile}", inputs, (Tensor(LOGITS, "float16", (1, ar, VOCAB)),)),))


TARGET = Target("tensorrt", (_graph(4, 0), _graph(1, 1)))


def _feeds(graph: Graph) -> dict[str, np.ndarray]:
    return {t.name: np.zeros(t.shape, t.dtype) for t in graph.parts[0].inputs}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "device").mkdir()
    (tmp_path / "device" / "model.engine").write_bytes(b"vtrt")
    return tmp_path


def _opened(folder: Path, fails: str = "") -> tuple[TrtExecutor, Calls]:
    calls: Calls = []
    return TrtExecutor(TARGET, folder, FakeTrt(calls, fails), FakeDevice(calls)), calls


def test_caches_are_allocated_once_and_bound_as_input_and_output_of_every_profile(folder: Path) -> None:
    _, calls = _opened(folder)
    size = 1 * 2 * CL * 4 * 2
    addresses = [c[2] for c in calls if c[:2] == ("allocate", size)][:2]
    for cache, address in zip(CACHES, addresses, strict=True):
        bound = [c for c in calls if c[0] == "bind" and c[1] in (f"{cache}_in", f"{cache}_out")]
        assert [c[2] for c in bound] == [address] * 4, "in and out, of two profiles"


def test_each_profile_has_a_context_and_every_tensor_an_address_before_anything_runs(folder: Path) -> None:
    executor, calls = _opened(folder)
    assert [c for c in calls if c[0] in ("context", "profile")] == [
        ("context",), ("profile", 0), ("context",), ("profile", 1)]
    executor.run(TARGET.graphs[0], _feeds(TARGET.graphs[0]))
    before = calls[: next(i for i, c in enumerate(calls) if c[0] == "run")]
    assert len([c for c in before if c[0] == "bind"]) == 2 * (len(CACHES) * 2 + 6)
    assert ("shape", MASK, (1, 1, 4, CL)) in before
    assert ("shape", MASK, (1, 1, 1, CL)) in before


def test_a_step_uploads_runs_downloads_and_waits(folder: Path) -> None:
    executor, calls = _opened(folder)
    calls.clear()
    made = executor.run(TARGET.graphs[0], _feeds(TARGET.graphs[0]))
    assert [c[0] for c in calls] == ["upload"] * 5 + ["run", "download", "synchronize"]
    assert made[LOGITS].shape == (1, 4, VOCAB)
    assert set(made) == {LOGITS}


def test_decode_is_captured_on_its_second_step_and_replayed_from_then_on(folder: Path) -> None:
    """The first runs as it is: kernels are compiled and loaded then, which no capture takes."""
    executor, calls = _opened(folder)
    calls.clear()
    for _ in range(4):
        executor.run(TARGET.graphs[1], _feeds(TARGET.graphs[1]))
    ran = [c[0] for c in calls if c[0] in ("run", "capture", "captured", "launch")]
    assert ran == ["run", "capture", "run", "captured", "launch", "launch", "launch"]
    calls.clear()
    for _ in range(3):
        executor.run(TARGET.graphs[0], _feeds(TARGET.graphs[0]))
    assert [c[0] for c in calls if c[0] in ("run", "launch")] == ["run"] * 3


@pytest.mark.parametrize(("fails", "said"), [
    ("load", "for another GPU or another TensorRT than tensorrt_rtx 1.7.1.116"), ("context", "profile 0"),
    ("profile", "profile 0 of the engine cannot be opened"), ("shape", "does not take input_ids"),
    ("bind", "the engine has no tensor")])
def test_what_does_not_open_is_closed_again(folder: Path, fails: str, said: str) -> None:
    calls: Calls = []
    with pytest.raises(ExecutorError, match=said):
        TrtExecutor(TARGET, folder, FakeTrt(calls, fails), FakeDevice(calls))
    assert calls[-1] == ("close",)


def test_a_step_that_fails_and_one_after_closing(folder: Path) -> None:
    executor, _ = _opened(folder, "run")
    with pytest.raises(ExecutorError, match="profile_0 failed on the GPU"):
        executor.run(TARGET.graphs[0], _feeds(TARGET.graphs[0]))
    executor.close()
    with pytest.raises(ExecutorError, match="the executor is closed"):
        executor.run(TARGET.graphs[0], _feeds(TARGET.graphs[0]))


def test_feeds_are_checked_before_they_reach_the_gpu(folder: Path) -> None:
    executor, calls = _opened(folder)
    calls.clear()
    with pytest.raises(ExecutorError, match="got no write_index"):
        executor.run(TARGET.graphs[0], {k: v for k, v in _feeds(TARGET.graphs[0]).items() if k != WRITE})
    assert calls == []


@pytest.mark.parametrize(("magic", "module", "said"), [
    (b"vtrt", "tensorrt_rtx", "pip install tensorrt-rtx-cu12"), (b"ftrt", "tensorrt", "whose trtexec built it")])
def test_an_engine_is_read_by_the_edition_that_made_it(folder: Path, monkeypatch: pytest.MonkeyPatch, magic: bytes,
                                                       module: str, said: str) -> None:
    (folder / "device" / "model.engine").write_bytes(magic)
    for name in ("tensorrt_rtx", "tensorrt"):
        monkeypatch.setitem(sys.modules, name, None if name == module else ModuleType(name))
    with pytest.raises(ExecutorError, match=f"needs {module} and its GPU.*{said}"):
        open_executor(TARGET, folder)
    calls: Calls = []
    monkeypatch.setitem(sys.modules, module, FakeTrt(calls))
    TrtExecutor(TARGET, folder, device=FakeDevice(calls))
    assert ("context",) in calls


def test_libraries_that_do_not_load_are_no_traceback(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "tensorrt_rtx").mkdir()
    (folder / "tensorrt_rtx" / "__init__.py").write_text("raise OSError('libtensorrt_rtx.so.1: too short')\n")
    monkeypatch.delitem(sys.modules, "tensorrt_rtx", raising=False)
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(ExecutorError, match=r"tensorrt_rtx and its GPU: libtensorrt_rtx\.so\.1: too short"):
        open_executor(TARGET, folder)


def test_without_cuda_python_the_target_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", None)
    with pytest.raises(ExecutorError, match="needs cuda-python and an NVIDIA driver"):
        TrtExecutor(TARGET, folder, FakeTrt([]))


def test_an_engine_that_cannot_be_read(folder: Path) -> None:
    (folder / "device" / "model.engine").unlink()
    with pytest.raises(ExecutorError, match=r"model\.engine cannot be read: No such file"):
        TrtExecutor(TARGET, folder, FakeTrt([]), FakeDevice([]))


class FakeCudart:
    """cuda-python's convention: every call returns (error, *results); an error is an enum with a name.

    It has the calls of CUDA_CALLS and no others.
    """

    class cudaStreamCaptureMode:
        cudaStreamCaptureModeThreadLocal = 1

    class cudaMemcpyKind:
        cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost = 1, 2

    def __init__(self, fails: str = "") -> None:
        self.calls: list[str] = []
        self._fails = fails

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        if name not in CUDA_CALLS:
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            assert len(arguments) == len(CUDA_CALLS[name]), name
            self.calls.append(name)
            return (2 if name == self._fails else 0, 0x5000)
        return call


def test_the_cuda_calls_of_a_capture_and_of_closing() -> None:
    cudart = FakeCudart()
    device = CudaDevice(cudart)
    address = device.allocate(64)
    device.upload(address, np.zeros(4, np.float32))
    replay = device.capture(lambda: None)
    replay()
    device.synchronize()
    device.close()
    device.close()
    assert cudart.calls == [
        "cudaStreamCreate", "cudaMalloc", "cudaMemsetAsync", "cudaMemcpyAsync", "cudaStreamBeginCapture",
        "cudaStreamEndCapture", "cudaGraphInstantiate", "cudaGraphDestroy", "cudaGraphLaunch", "cudaStreamSynchronize",
        "cudaGraphExecDestroy", "cudaFree", "cudaStreamDestroy"]


def test_an_error_of_cudas_has_its_name() -> None:
    with pytest.raises(ExecutorError, match="cudaMalloc: 2"):
        CudaDevice(FakeCudart("cudaMalloc")).allocate(64)


def test_the_cuda_calls_are_cuda_pythons() -> None:
    """Loads without a driver, where it is installed."""
    cudart = pytest.importorskip("cuda.bindings.runtime")
    assert {n: tuple(inspect.signature(getattr(cudart, n)).parameters) for n in CUDA_CALLS} == CUDA_CALLS
    assert cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal == 1
    assert (cudart.cudaMemcpyKind.cudaMemcpyHostToDevice, cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost) == (1, 2)
    with pytest.raises(ExecutorError, match="cudaMalloc: cudaError|cudaStreamCreate: cudaError"):
        CudaDevice(cudart).allocate(1 << 60)
