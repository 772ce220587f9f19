"""The tiny model's three parts, compiled once a session as device binaries and as x86 twins."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from qnn_tiny_llama import PARTS, Ranges, Tiny, calibrate, cpu_session, graph_name, write_parts

from edgeforge.backends.process import is_running
from edgeforge.backends.qnn.compiler import CompiledPart, GraphJob, PartJob, compile_part

SOC, ARCH, WIDTHS = 57, 75, (32, 1)
TIMEOUT_S = 120.0
NUMPY = {"tensor(int32)": np.int32, "tensor(uint16)": np.uint16, "tensor(uint8)": np.uint8}


@dataclass(frozen=True)
class Built:
    model: Tiny
    ranges: Ranges
    onnx: dict[str, Path]
    feeds: dict[str, Path]
    device: list[CompiledPart]
    twin: list[CompiledPart]


@pytest.fixture(scope="session")
def wheel() -> None:
    if importlib.util.find_spec("onnxruntime_qnn") is None:
        pytest.skip("onnxruntime-qnn is not installed")


@pytest.fixture(scope="session")
def built(wheel: None, tmp_path_factory: pytest.TempPathFactory) -> Built:
    root, model = tmp_path_factory.mktemp("tiny"), Tiny()
    ranges = calibrate(model)
    paths = write_parts(model, ranges, root)
    feeds = {name: random_feeds(path) for name, path in paths.items()}

    def compile_all(kind: str, *, sharing: bool) -> list[CompiledPart]:
        parts = []
        for part in range(1, PARTS + 1):
            names = [graph_name(ar, part, model) for ar in WIDTHS]
            graphs = tuple(GraphJob(n, paths[n], feeds[n]) for n in names)
            job = PartJob(f"part{part}", graphs, SOC, root / kind / f"part{part}", sharing, dsp_arch=ARCH)
            parts.append(compile_part(job, TIMEOUT_S))
        return parts

    return Built(
        model, ranges, paths, feeds, compile_all("device", sharing=True), compile_all("twin", sharing=False)
    )


def pid_is_running(pid: int) -> bool:
    try:
        return is_running(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def random_feeds(path: Path) -> Path:
    """Arbitrary but fixed codes for every input but the mask, as .npz beside the model."""
    rng = np.random.default_rng(0)
    arrays = {}
    for tensor in cpu_session(path).get_inputs():
        dtype = NUMPY[tensor.type]
        high = 256 if dtype is np.int32 else np.iinfo(dtype).max + 1
        arrays[tensor.name] = rng.integers(0, high, tensor.shape).astype(dtype)
        if tensor.name == "attention_mask":  # the new tokens among themselves, causally; an empty past
            arrays[tensor.name][:] = 0
            ar = tensor.shape[2]
            arrays[tensor.name][..., -ar:] = 65535 * np.tri(ar, dtype=dtype)
    out = path.with_suffix(".npz")
    np.savez(out, **arrays)
    return out


@dataclass(frozen=True)
class Compiler:
    """Compiles small graphs in a folder of their own; names are <name>0, <name>1, ..."""

    folder: Path

    def job(
        self, name: str, *models: onnx.ModelProto, sharing: bool = False, soc: int = SOC, **more: int
    ) -> PartJob:
        graphs = []
        for index, model in enumerate(models):
            path = self.folder / f"{name}{index}.onnx"
            onnx.save(model, path)
            graphs.append(GraphJob(f"{name}{index}", path))
        return PartJob(name, tuple(graphs), soc, self.folder / name, sharing, **more)

    def __call__(
        self, name: str, *models: onnx.ModelProto, sharing: bool = False, **more: int
    ) -> CompiledPart:
        return compile_part(self.job(name, *models, sharing=sharing, **more), TIMEOUT_S)


@pytest.fixture
def compiler(wheel: None, tmp_path: Path) -> Compiler:
    return Compiler(tmp_path)
