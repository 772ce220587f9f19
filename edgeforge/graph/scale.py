"""A constant factor on a linear chain moves into the parameter at its start (1/sqrt(d) into q_proj)."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeforge.graph import edit

_LINEAR = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "RotaryEmbedding", "Identity")
"""ops that commute with a factor on their first input"""

SCALED = "edgeforge.scaled."
"""model metadata: which parameter was multiplied, by what"""


class FoldScale(ir.passes.InPlacePass):
    """Mul(chain(Conv | MatMul | RMSNormalization), constant) -> the chain alone, its parameter scaled.

    Left alone when the parameter or any value on the way has another reader.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        changed = False
        for node in list(model.graph):
            if node.op_type != "Mul":
                continue
            for value, factor in (node.inputs, reversed(node.inputs)):
                number = edit.scalar(factor)
                if value is None or number is None:
                    continue
                parameters = _parameters(value)
                if parameters is None:
                    continue
                for parameter in parameters:
                    _scale(model, parameter, number)
                edit.replace(node.outputs[0], value)
                model.graph.remove(node, safe=True)
                changed = True
                break
        return ir.passes.PassResult(model, changed)


def _parameters(value: ir.Value) -> list[ir.Value] | None:
    """What to multiply so that value is multiplied: a weight and perhaps its bias."""
    while True:
        if edit.only_user(value) is None:
            return None
        node = value.producer()
        if node is None:
            return None
        if node.op_type in _LINEAR:
            if node.inputs[0] is None:
                return None
            value = node.inputs[0]
            continue
        return _own(node)


def _own(node: ir.Node) -> list[ir.Value] | None:
    if node.op_type == "Conv":
        found = node.inputs[1:]
    elif node.op_type == "RMSNormalization":
        found = node.inputs[1:2]
    elif node.op_type == "MatMul":
        turn = edit.producer(node.inputs[1], "Transpose")
        found = turn.inputs if turn is not None else node.inputs[1:]
    elif node.op_type == "Add" and (product := edit.producer(node.inputs[0], "MatMul")) is not None:
        weight = _own(product) if edit.only_user(product.outputs[0]) else None
        found = [*(weight or [None]), node.inputs[1]]
    else:
        return None
    kept = [v for v in found if v is not None and v.is_initializer() and len(list(v.uses())) == 1]
    return kept if kept and len(kept) == len(found) else None


def _scale(model: ir.Model, parameter: ir.Value, number: float) -> None:
    array = edit.constant(parameter)
    if array is None or parameter.name is None:
        raise ValueError("not a parameter")
    parameter.const_value = ir.tensor((array * np.float32(number)).astype(array.dtype), name=parameter.name)
    key = SCALED + parameter.name
    model.metadata_props[key] = repr(number * float(model.metadata_props.get(key, "1")))
