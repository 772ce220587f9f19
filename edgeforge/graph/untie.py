"""An embedding table that is another product's weight too gets a copy of its own: each may then be rewritten or rounded
without the other."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeforge.graph import edit


class UntieEmbedding(ir.passes.InPlacePass):
    """Post: nothing but its Gather reads an embedding table. The other readers keep the name; the table is called after
    the module that looks it up."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        graph, changed = model.graph, False
        for node in [n for n in graph if n.op_type == "Gather"]:
            table = node.inputs[0]
            if table is None or not table.is_initializer() or len(list(table.uses())) == 1:
                continue
            array = edit.constant(table)
            if array is None:
                raise ValueError(f"{table.name} is not a constant")
            # A copy: a view would hold the file open that other readers let go of (quantize/parameters.py).
            own = edit.initializer(graph, edit.fresh(graph, f"{node.outputs[0].name}.weight"), np.array(array))
            node.replace_input_with(0, own)
            changed = True
        return ir.passes.PassResult(model, changed)
