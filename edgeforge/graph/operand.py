"""The second operand of a product of two activations gets a grid of its own.

HTP multiplies 16-bit codes by 8-bit codes, or by 16-bit codes that are signed and symmetric. Given anything
else the compiler narrows the operand to 8 bits without a word. So a Requantize stands before it (see
requantize.py), whose output quantize puts on a grid that the chip multiplies by.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeforge.graph import edit
from edgeforge.graph.requantize import OPERAND, mark


class RequantizeOperands(ir.passes.InPlacePass):
    """MatMul(a, b) -> MatMul(a, Requantize(b)) where b is computed; made once for each value."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        changed = False
        made: dict[ir.Value, ir.Value] = {}
        for node in [n for n in model.graph if n.op_type == "MatMul"]:
            value = node.inputs[1]
            if value is None or value.is_initializer():
                continue
            if value not in made:
                name = edit.fresh(model.graph, f"{value.name}/operand")
                made[value] = edit.node_before(node, "Identity", [value], name, edit.known_dims(value))
                mark(made[value], OPERAND)
            node.replace_input_with(1, made[value])
            changed = True
        return ir.passes.PassResult(model, changed)
