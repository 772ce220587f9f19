"""The few calls of the CUDA runtime that an engine needs, through cuda-python."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edgeforge_runtime.errors import ExecutorError

Array = npt.NDArray[Any]
_PARENT = "cuda.bindings.runtime"


class Device(Protocol):
    """One GPU and one stream, on which everything happens in order."""

    stream: int

    def allocate(self, size: int) -> int:
        """Address of size zeroed bytes."""
        ...

    def upload(self, address: int, array: Array) -> None:
        """Copies a contiguous array to the GPU; the array may change once synchronize has returned."""
        ...

    def download(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """The array at an address; its contents are there once synchronize has returned."""
        ...

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Records what work enqueues, without running it, as a CUDA graph; returns what launches the graph."""
        ...

    def synchronize(self) -> None:
        """Waits for all that was enqueued."""
        ...

    def close(self) -> None:
        """Frees all that was allocated; a second call does nothing."""
        ...


class CudaDevice:
    """The first GPU. See Device; every call raises ExecutorError with CUDA's own name for what is wrong."""

    def __init__(self, cudart: Any) -> None:
        self._cuda = cudart
        self._allocated: list[int] = []
        self._kept: list[Array] = []
        self._graphs: list[Any] = []
        self._stream = self._call("cudaStreamCreate")
        self.stream = int(self._stream)

    def allocate(self, size: int) -> int:
        address = int(self._call("cudaMalloc", size))
        self._allocated.append(address)
        self._call("cudaMemsetAsync", address, 0, size, self._stream)
        return address

    def upload(self, address: int, array: Array) -> None:
        self._kept.append(array)
        self._copy(address, array.ctypes.data, array.nbytes, "cudaMemcpyHostToDevice")

    def download(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        array = np.empty(shape, dtype)
        self._copy(array.ctypes.data, address, array.nbytes, "cudaMemcpyDeviceToHost")
        return array

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("cudaStreamBeginCapture", self._stream, mode)
        try:
            work()
        finally:
            graph = self._call("cudaStreamEndCapture", self._stream)
        instance = self._call("cudaGraphInstantiate", graph, 0)
        self._call("cudaGraphDestroy", graph)
        self._graphs.append(instance)
        return lambda: self._call("cudaGraphLaunch", instance, self._stream)

    def synchronize(self) -> None:
        self._call("cudaStreamSynchronize", self._stream)
        self._kept.clear()

    def close(self) -> None:
        for instance in self._graphs:
            self._cuda.cudaGraphExecDestroy(instance)
        for address in self._allocated:
            self._cuda.cudaFree(address)
        if self._stream is not None:
            self._cuda.cudaStreamDestroy(self._stream)
            self._stream = None
        self._graphs.clear()
        self._allocated.clear()

    def _copy(self, to: int, source: int, size: int, way: str) -> None:
        self._call("cudaMemcpyAsync", to, source, size, getattr(self._cuda.cudaMemcpyKind, way), self._stream)

    def _call(self, name: str, *arguments: Any) -> Any:
        error, *found = getattr(self._cuda, name)(*arguments)
        if int(error) != 0:
            raise ExecutorError(f"{name}: {getattr(error, 'name', error)}")
        return found[0] if found else None


def open_device() -> CudaDevice:
    """ExecutorError: no cuda-python, no driver or no GPU."""
    try:
        cudart = importlib.import_module(_PARENT)
    except (ImportError, OSError, RuntimeError) as error:
        raise ExecutorError(f"this target needs cuda-python and an NVIDIA driver: {error}") from error
    try:
        return CudaDevice(cudart)
    except RuntimeError as error:  # no libcuda
        raise ExecutorError(f"no NVIDIA GPU can be used here: {error}") from error
