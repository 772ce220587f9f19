"""tensorrt: one engine with a profile a width, on the GPU that it was built for.

The KV cache is allocated once, zeroed, and bound as input and as output of every profile: the engine writes it in place
and prefill hands it to decode by leaving it there. The widths' contexts share the engine's weights. Steps of one token
are replayed as a CUDA graph. Needs numpy, TensorRT(-RTX) and cuda-python; imported when a bundle's target asks for it.
Written against TensorRT-RTX 1.7.1's bindings; never run on a GPU by its authors.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from edgeforge_runtime.errors import ExecutorError
from edgeforge_runtime.manifest import Graph, Part, Target, new_name, past_layer

from .base import Arrays, run_parts
from .trt_device import Device, open_device

_MAGIC, _RTX, _ENTERPRISE = b"vtrt", "tensorrt_rtx", "tensorrt"
"""how an engine of TensorRT for RTX begins; who reads it, and who reads every other one"""
_INSTALL = {_RTX: 'pip install tensorrt-rtx-cu12 "cuda-python>=12.9,<13"',
            _ENTERPRISE: 'use the TensorRT whose trtexec built it, and pip install "cuda-python>=12.9,<13"'}


class TrtExecutor:
    """Runs the graphs of a target whose cache stays here; part.graph names the profile."""

    def __init__(self, target: Target, folder: Path, trt: Any = None, device: Device | None = None) -> None:
        """trt, device: TensorRT's module and the GPU; by default the edition that made the engine, and the first one.

        Raises:
            ExecutorError: no engine, no TensorRT, no GPU, or an engine that they do not load.
        """
        files = {part.file for graph in target.graphs for part in graph.parts}
        if len(files) != 1:
            raise ExecutorError(f"a TensorRT target has one engine, not {sorted(files)}")
        path = folder / files.pop()
        plan = _read(path)
        self._trt = trt or _module(_RTX if plan.startswith(_MAGIC) else _ENTERPRISE)
        self._device = device or open_device()
        self._caches: dict[str, int] = {}
        self._profiles: dict[str, _Profile] = {}
        try:
            self._open(target, path, plan)
        except BaseException:
            self.close()
            raise

    def run(self, graph: Graph, feeds: Arrays) -> Arrays:
        """See Executor.run."""
        return run_parts(graph, feeds, self._run)

    def close(self) -> None:
        """Frees the engine and everything on the GPU."""
        self._profiles.clear()
        self._caches.clear()
        self._device.close()

    def _open(self, target: Target, path: Path, plan: bytes) -> None:
        self._logger = self._trt.Logger(self._trt.Logger.WARNING)
        self._runtime = self._trt.Runtime(self._logger)
        engine = self._runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise ExecutorError(f"{path} does not load: it is for another GPU or another TensorRT than "
                                f"{self._trt.__name__} {self._trt.__version__}, or there is no NVIDIA driver")
        names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        for name in (n for n in names if past_layer(n)):
            size = math.prod(engine.get_tensor_shape(name)) * self._itemsize(engine, name)
            self._caches[name] = self._device.allocate(size)
        for index, graph in enumerate(target.graphs):
            part = graph.parts[0]
            self._profiles[part.graph] = _Profile(engine, index, part, self._caches, self._device, graph.ar == 1)

    def _itemsize(self, engine: Any, name: str) -> int:
        return int(np.dtype(self._trt.nptype(engine.get_tensor_dtype(name))).itemsize)

    def _run(self, part: Part, feeds: Arrays) -> Arrays:
        if part.graph not in self._profiles:
            raise ExecutorError(f"{part.graph} is not loaded: the executor is closed")
        return self._profiles[part.graph].run(feeds)


class _Profile:
    """One width: its context, its buffers, and from the second step on its CUDA graph."""

    def __init__(self, engine: Any, index: int, part: Part, caches: dict[str, int], device: Device,
                 captured: bool) -> None:
        self._device, self._part, self._wants_graph = device, part, captured
        self._context = engine.create_execution_context()
        if self._context is None or not self._context.set_optimization_profile_async(index, device.stream):
            raise ExecutorError(f"profile {index} of the engine cannot be opened: is the GPU's memory full?")
        device.synchronize()
        self._replay: Callable[[], None] | None = None
        self._warm = False
        self._buffers = {t.name: device.allocate(math.prod(t.shape) * np.dtype(t.dtype).itemsize)
                         for t in (*part.inputs, *part.outputs)}
        for tensor in part.inputs:
            if not self._context.set_input_shape(tensor.name, tensor.shape):
                raise ExecutorError(f"profile {index} does not take {tensor.name} as {list(tensor.shape)}")
        for name, address in caches.items():
            self._context.set_input_shape(name, tuple(engine.get_tensor_shape(name)))
            self._bind(name, address)
            self._bind(new_name(name), address)
        for name, address in self._buffers.items():
            self._bind(name, address)

    def run(self, feeds: Arrays) -> Arrays:
        """Copies the feeds in, runs, copies the outputs out."""
        for tensor in self._part.inputs:
            self._device.upload(self._buffers[tensor.name], np.ascontiguousarray(feeds[tensor.name]))
        self._launch()
        made = {t.name: self._device.download(self._buffers[t.name], t.shape, np.dtype(t.dtype))
                for t in self._part.outputs}
        self._device.synchronize()
        return made

    def _launch(self) -> None:
        """The first step runs as it is, so that kernels are loaded; the second is captured."""
        if self._replay is not None:
            self._replay()
        elif self._wants_graph and self._warm:
            self._replay = self._device.capture(self._enqueue)
            self._replay()
        else:
            self._enqueue()
            self._warm = True

    def _enqueue(self) -> None:
        if not self._context.execute_async_v3(self._device.stream):
            raise ExecutorError(f"{self._part.graph} failed on the GPU")

    def _bind(self, name: str, address: int) -> None:
        if not self._context.set_tensor_address(name, address):
            raise ExecutorError(f"the engine has no tensor {name}")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ExecutorError(f"{path} cannot be read: {error.strerror}") from error


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, AttributeError) as error:  # not there, or its libraries do not load
        raise ExecutorError(f"this target needs {name} and its GPU: {error}: {_INSTALL[name]}") from error
