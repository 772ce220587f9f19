"""What the quantized graph with one attention a head answers, before it is cut into parts."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir
import onnxruntime as ort
from edgeforge_runtime.executors.cpu import exact_options

from edgeforge.encodings import Table
from edgeforge.export.record import Call
from edgeforge.graph import bind, store
from edgeforge.quantize import qdq


def answers(model: ir.Model, table: Table, calls: Mapping[str, Call], context: int, threads: int) -> dict[str, Call]:
    """The AR-1 calls with the outputs that this graph gives for their inputs.

    The judge of decoding where all query heads read one key head: before they are told apart, onnxruntime multiplies
    them as one matrix and sums in another order than for one row. A code that flips so between two grid points grows
    through the layers (17 dB at the end of Gemma-3-270M's, W4), so there the graph before says nothing about parts.

    Args:
        model: float, with table's weights and heads.
    """
    bound = bind.bind(qdq.quantize(model.clone(), table), 1, context)
    names = [str(o.name) for o in bound.graph.outputs]
    options = exact_options()
    options.intra_op_num_threads = threads
    with tempfile.TemporaryDirectory() as scratch:
        session = ort.InferenceSession(str(store.save(bound, Path(scratch))), options,
                                       providers=["CPUExecutionProvider"])
        return {label: Call(1, call.inputs, dict(zip(names, session.run(None, dict(call.inputs)), strict=True)))
                for label, call in calls.items() if call.ar == 1}
