"""Slices of nothing: a partial rotary that rotates every dimension leaves an empty rest behind each Concat.

HTP refuses a tensor with a dimension of 0; a Concat without it is the same Concat.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeforge.graph import edit


class DropEmpty(ir.passes.InPlacePass):
    """Takes empty inputs out of every Concat; one with a single input left is that input."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        changed = False
        for node in list(model.graph):
            full = [v for v in node.inputs if v is not None and 0 not in (edit.dims(v) or [])]
            if node.op_type != "Concat" or not full or len(full) == len(node.inputs):
                continue
            for index, value in enumerate(full):
                node.replace_input_with(index, value)
            node.resize_inputs(len(full))
            if len(full) == 1:
                edit.replace(node.outputs[0], full[0])
            changed = True
        return ir.passes.PassResult(model, changed)
