"""Tiny models as the quantize stage leaves them, for the backend alone: float graph, table, manifest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import tiny

from edgeforge import artifact
from edgeforge.backends.tensorrt import weights
from edgeforge.encodings import FILE, Encoding, Table, reals
from edgeforge.graph import edit, store
from edgeforge.graph.optimize import optimize
from edgeforge.targets import TRT

CONTEXT, PREFILL = 64, 16
SIZES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "vocab_size": 256}


@dataclass(frozen=True)
class Quantized:
    """folder: a quantize artifact as far as the backend reads it."""

    folder: Path
    table: Table
    made: tiny.Adapted

    @property
    def model(self) -> ir.Model:
        return store.load(self.folder / "float")

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        return tiny.ids(CONTEXT, SIZES["vocab_size"])


def nearest(array: npt.NDArray[np.float32], bits: int, block: int | None = None) -> Encoding:
    """Symmetric, signed, the largest value on the last code; [N] steps, or [N, K / block]."""
    rows = array.reshape(len(array), -1, block or array.shape[1])
    steps = (np.abs(rows).max(-1) / ((1 << (bits - 1)) - 1)).astype(np.float32)
    steps = steps.astype(np.float16).astype(np.float32)
    if block is None:
        steps = steps[:, 0]
    return Encoding(bits, True, steps, np.zeros(steps.shape, np.int64), 0 if block is None else 1, block)


def quantized(folder: Path, family: str = "llama", bits: int = 16, block: int | None = None, int8: bool = False,
              **changes: object) -> Quantized:
    """int8: activations have grids too."""
    made = tiny.adapt(tiny.model(family, **SIZES | changes), TRT, CONTEXT, PREFILL * 2 + 8)
    model = optimize(made.model, TRT)
    table = Table()
    for product in weights.products(model.graph):
        name, array = str(product.weight.name), edit.constant(product.weight)
        if bits < 16 and array is not None and name not in table:
            table.set(name, nearest(reals(array), bits, block))
        if int8:
            table.set(str(product.x.name), Encoding(8, True, np.array(0.05, np.float32), np.array(0, np.int64)))
    tiny.write(folder, made, model, CONTEXT, PREFILL)
    (folder / "float").mkdir()
    store.save(model, folder / "float")
    table.save(folder / FILE)
    return Quantized(folder, table, made)


def emitted_to(folder: Path, model: ir.Model) -> Path:
    folder.mkdir(exist_ok=True)
    return store.save(model, folder)


__all__ = ["CONTEXT", "PREFILL", "Quantized", "artifact", "emitted_to", "nearest", "quantized"]
