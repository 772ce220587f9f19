"""Where HTP wants a value on another grid than its maker or its neighbours, a Requantize goes between.

The second operand of a product: HTP multiplies 16-bit codes by 8-bit codes, or by 16-bit codes that are signed
and symmetric. Given anything else the compiler narrows the operand to 8 bits without a word.

What Softmax, Sigmoid and Tanh make: its grid follows from the op (roles.FIXED), and a Concat or the like with
values of another size would put both on one.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeforge.graph import edit
from edgeforge.graph.requantize import OPERAND, mark
from edgeforge.quantize import roles


class RequantizeOperands(ir.passes.InPlacePass):
    """MatMul(a, b) -> MatMul(a, Requantize(b)) where b is computed; made once for each value."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        changed = False
        made: dict[ir.Value, ir.Value] = {}
        for node in [n for n in model.graph if n.op_type == "MatMul"]:
            value = node.inputs[1]
            if value is None or edit.is_weight(value):
                continue
            if value not in made:
                name = edit.fresh(model.graph, f"{value.name}/operand")
                made[value] = edit.node_before(node, "Identity", [value], name, edit.known_dims(value))
                mark(made[value], OPERAND)
            node.replace_input_with(1, made[value])
            changed = True
        return ir.passes.PassResult(model, changed)


class RequantizeFixed(ir.passes.InPlacePass):
    """A value on a fixed grid is requantized where moves tie it to values that are not."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        changed = False
        for group in list(roles.groups(model.graph)):
            starts = [v for v in group if (node := v.producer()) is None or not roles.moves(node)]
            ranges = {v: _fixed(v) for v in starts}
            if len(set(ranges.values())) > 1:
                for value in [v for v, seen in ranges.items() if seen is not None]:
                    _free(model.graph, value)
                    changed = True
        return ir.passes.PassResult(model, changed)


def _fixed(value: ir.Value) -> tuple[float, float] | None:
    node = value.producer()
    return roles.FIXED.get(node.op_type) if node is not None else None


def _free(graph: ir.Graph, value: ir.Value) -> None:
    node, uses = value.producer(), list(value.uses())
    if node is None:
        raise ValueError(f"{value.name} has no producer")
    name = edit.fresh(graph, f"{value.name}/free")
    out = edit.node_after(node, "Identity", [value], name, edit.known_dims(value))
    mark(out)
    for use in uses:
        use.node.replace_input_with(use.idx, out)
