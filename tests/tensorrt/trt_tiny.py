"""Tiny models as the quantize stage leaves them, for the backend alone: float graph, table, manifest."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import tiny

from edgeforge import float8
from edgeforge.backends.tensorrt import weights
from edgeforge.backends.tensorrt.emit import Emitted, emit
from edgeforge.backends.tensorrt.engine import Engine, build_engine
from edgeforge.backends.tensorrt.job import EngineJob
from edgeforge.encodings import FILE, Encoding, Table, reals
from edgeforge.graph import edit, store
from edgeforge.graph.optimize import optimize
from edgeforge.targets import TRT

CONTEXT, PREFILL, VOCAB = 64, 16, 320
WIDTHS = (PREFILL, 1)
SIZES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "vocab_size": VOCAB}
IDS = tiny.ids(CONTEXT, VOCAB)


@functools.cache
def adapted(family: str, layers: int | None = None) -> tiny.Adapted:
    own = {"sliding_window": CONTEXT} if family in ("gemma2", "gemma3", "olmo3") else {}
    depth = {} if layers is None else {"num_hidden_layers": layers}
    made = tiny.adapt(tiny.model(family, **SIZES | own | depth), TRT, CONTEXT, PREFILL)
    return replace(made, model=optimize(made.model, TRT))


def floats(family: str, layers: int | None = None) -> ir.Model:
    """The optimized float graph, a new one each time."""
    return adapted(family, layers).model.clone()


def nearest(array: npt.NDArray[np.float32], bits: int, block: int | None = None, fp8: bool = False) -> Encoding:
    """Symmetric, signed, the largest value on the last code, steps in float16; [N] of them, or [N, K / block]."""
    rows = array.reshape(len(array), -1, block or array.shape[1])
    last = float8.MOST if fp8 else (1 << (bits - 1)) - 1
    steps = (np.abs(rows).max(-1) / last).astype(np.float16).astype(np.float32)
    if block is None:
        steps = steps[:, 0]
    return Encoding(bits, True, steps, np.zeros(steps.shape, np.int64), 0 if block is None else 1, block,
                    e4m3=fp8)


def table(model: ir.Model, bits: int = 16, block: int | None = None, read: bool = False, fp8: bool = False) -> Table:
    """read: inputs of products have grids too. fp8: 8 bits are E4M3."""
    found = Table()
    for product in weights.products(model.graph):
        name, array = str(product.weight.name), edit.constant(product.weight)
        if bits < 16 and array is not None and name not in found:
            found.set(name, nearest(reals(array), bits, block, fp8))
        if read:
            step, zero = np.array(0.05, np.float32), np.array(0, np.int64)
            found.set(str(product.x.name), Encoding(8, True, step, zero, e4m3=fp8))
    return found


def artifact(folder: Path, family: str, grids: Table) -> Path:
    """A quantize artifact as far as the backend reads it."""
    made = adapted(family)
    tiny.write(folder, made, floats(family), CONTEXT, PREFILL)
    (folder / "float").mkdir()
    store.save(floats(family), folder / "float")
    grids.save(folder / FILE)
    return folder


@dataclass(frozen=True)
class Built:
    emitted: Emitted
    engine: Engine
    profiles: tuple[dict[str, tuple[int, ...]], ...]


def build(folder: Path, model: ir.Model, grids: Table, compute: tuple[str, ...] = ("SM86",)) -> Built:
    """Emits and builds for real."""
    emitted = emit(model, grids, CONTEXT)
    folder.mkdir(exist_ok=True)
    path, profiles = store.save(emitted.model, folder), emitted.profiles(WIDTHS)
    return Built(emitted, build_engine(EngineJob(path, compute, profiles, folder / "engine"), 120), profiles)
