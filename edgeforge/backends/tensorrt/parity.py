"""Did the rewrite for TensorRT change the model? The emitted ONNX against the float graph with the same weights.

Both on onnxruntime's CPU. The reference computes in float32, with past‖new and attention spelled out, over weights
rounded as the engine's are (codes x float16 scales; float16 else), so that what is left is the rewrite itself and
float16 arithmetic. Where products read codes, a value that moves by a hair, in float32 even, may round to the code
beside, a whole step off, which after a few layers is as much as the rounding itself costs: there the rewrite is judged
without those codes on both sides, and with them by a gate of its own.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
from edgeforge_runtime.executors import open_executor
from edgeforge_runtime.manifest import Manifest
from edgeforge_runtime.session import Session

from edgeforge import artifact
from edgeforge.backends.tensorrt import activations, emulate
from edgeforge.backends.tensorrt.emit import Emitted
from edgeforge.encodings import Floats, Table
from edgeforge.gates import Check
from edgeforge.graph import edit, half, store
from edgeforge.metrics import sqnr_db

STEPS = 16
_CHUNKS = 2


def checks(source: Path, table: Table, emitted: Emitted, model: Path, ids: np.ndarray, threads: int) -> list[Check]:
    """Logits of two chunks of prefill, and of decode steps behind them over the cache that prefill left.

    Args:
        source: a quantize artifact. model: what was emitted. ids: [tokens], enough for both.
    """
    manifest = Manifest.load(source)
    rope = artifact.load_rope(source)
    cpu = manifest.targets["cpu"]
    widths, context = [g.ar for g in cpu.graphs], cpu.graphs[0].cl

    def emulated(path: Path) -> list[Floats]:
        own = emulate.target(store.load(path.parent), path.name, widths, context)
        with Session(manifest, own, emulate.InPlaceOnCpu(path, threads), rope) as session:
            return list(_logits(session, ids, widths[0]))

    def expected(codes: bool) -> list[Floats]:
        with tempfile.TemporaryDirectory(prefix="edgeforge-parity-") as folder:
            store.save(reference(store.load(source / artifact.FLOAT), table, codes), Path(folder))
            whole = artifact.whole(artifact.load_decoder(source), widths, context)
            executor = open_executor(whole, Path(folder), exact=True, threads=threads)
            with Session(dataclasses.replace(manifest, targets={"cpu": whole}), whole, executor, rope) as session:
                return list(_logits(session, ids, widths[0]))

    if not emitted.read:
        return list(_compared(expected(False), emulated(model), "the emitted graph", "emitted_db"))
    with tempfile.TemporaryDirectory(prefix="edgeforge-parity-") as folder:
        plain = emulated(store.save(without_codes(store.load(model.parent)), Path(folder)))
    return [*_compared(expected(False), plain, "the emitted graph, what products read unrounded,", "emitted_db"),
            *_compared(expected(True), emulated(model), "the emitted graph", "emitted_codes_db")]


def without_codes(model: ir.Model) -> ir.Model:
    """The emitted graph, in place: what products read goes into them as it is, not by way of codes."""
    for node in model.graph:
        if node.op_type == "QuantizeLinear" and node.inputs[0] is not None:
            for reader in list(node.outputs[0].consumers()):
                edit.replace(reader.outputs[0], node.inputs[0])
    return model


def reference(model: ir.Model, table: Table, codes: bool = True) -> ir.Model:
    """The float graph, in place: weights on the table's own grids, all other constants rounded to float16.

    codes: is what products read rounded, too?
    """
    graph = model.graph
    if codes:
        activations.write(graph, table)
    for name, value in list(graph.initializers.items()):
        array = edit.constant(value)
        if array is not None and value.dtype == ir.DataType.FLOAT:
            grid = table.get(name)
            rounded = grid.dequantize(grid.quantize(array)) if grid is not None else half.half(name, array)
            value.const_value = ir.tensor(rounded.astype(np.float32), name=name)
    return model


def _logits(session: Session, ids: np.ndarray, chunk: int) -> Iterator[Floats]:
    """First the prompt's rows, then a row a step."""
    prompt = _CHUNKS * chunk
    yield np.concatenate(list(session.score([int(t) for t in ids[:prompt]])))
    for token in ids[prompt : prompt + STEPS]:
        yield session.step(int(token))


def _compared(expected: list[Floats], made: list[Floats], what: str, gate: str) -> Iterator[Check]:
    finite = all(np.isfinite(rows).all() for rows in made)
    note = "" if finite else "float16 ends at 65504, and a value of this model goes further"
    pairs = (("prefill", expected[0], made[0]), ("decode", np.stack(expected[1:]), np.stack(made[1:])))
    for name, theirs, ours in pairs:
        found = sqnr_db(theirs, ours) if finite else -math.inf
        yield Check(f"compile: {name} of {what} against the float graph", found, "dB", note=note, gate=gate)
