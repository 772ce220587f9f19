"""Gemma's norms multiply by (1 + w): the 1 is added to the parameter once, here."""

from __future__ import annotations

import onnx_ir as ir

from edgeforge.graph import edit

SHIFTED = "edgeforge.shifted."
"""model metadata: which parameter was shifted, by what"""


class FoldOffset(ir.passes.InPlacePass):
    """Add(parameter, constant scalar) -> the parameter, shifted. Left alone when the parameter is read elsewhere."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        changed = False
        for node in list(model.graph):
            if node.op_type == "Add":
                changed |= _fold(model, node)
        return ir.passes.PassResult(model, changed)


def _fold(model: ir.Model, add: ir.Node) -> bool:
    for parameter, offset in (add.inputs, reversed(add.inputs)):
        array, number = edit.constant(parameter), edit.scalar(offset)
        if (parameter is None or array is None or number is None or array.size == 1
                or edit.only_user(parameter) is not add or add.outputs[0].is_graph_output()):
            continue
        parameter.const_value = ir.tensor(array + array.dtype.type(number), name=parameter.name)
        model.metadata_props[f"{SHIFTED}{parameter.name}"] = repr(number)
        edit.replace(add.outputs[0], parameter)
        model.graph.remove(add, safe=True)
        return True
    return False
