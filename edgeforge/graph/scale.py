"""A constant factor on a linear chain moves into the parameter at its start (1/sqrt(d) into q_proj)."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from edgeforge.graph import edit

_LINEAR = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "RotaryEmbedding", "Identity")
"""ops that commute with a factor on their first input"""

SCALED = "edgeforge.scaled."
"""model metadata: which parameter was multiplied, by what"""


class FoldScale(ir.passes.InPlacePass):
    """Mul or Div(chain(Conv | MatMul | RMSNormalization | Gather), constant) -> the chain, its parameter scaled.

    Left alone when the parameter or any value on the way has another reader.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        changed = False
        for node in list(model.graph):
            changed |= _fold(model, node)
        return ir.passes.PassResult(model, changed)


def _fold(model: ir.Model, node: ir.Node) -> bool:
    for value, factor in _scalings(node):
        parameters = _parameters(value)
        if parameters is None:
            continue
        for parameter in parameters:
            _scale(model, parameter, factor)
        edit.replace(node.outputs[0], value)
        model.graph.remove(node, safe=True)
        return True
    return False


def _scalings(node: ir.Node) -> list[tuple[ir.Value, float]]:
    """(value, factor) for each way to read node as value * factor."""
    if node.op_type not in ("Mul", "Div"):
        return []
    left, right = node.inputs
    found = []
    number = edit.scalar(right)
    if left is not None and number:
        found.append((left, number if node.op_type == "Mul" else 1 / number))
    number = edit.scalar(left)
    if right is not None and number and node.op_type == "Mul":
        found.append((right, number))
    return found


def _parameters(value: ir.Value) -> list[ir.Value] | None:
    """What to multiply so that value is multiplied: a weight and perhaps its bias."""
    while True:
        node = value.producer()
        if node is None or edit.only_user(value) is None:
            return None
        if node.op_type not in _LINEAR:
            return _own(node)
        if node.inputs[0] is None:
            return None
        value = node.inputs[0]


def _own(node: ir.Node) -> list[ir.Value] | None:
    """The parameters that node's output is linear in, when nothing else reads them."""
    if node.op_type == "Conv":
        return _unshared(node.inputs[1:])
    if node.op_type == "RMSNormalization":
        return _unshared(node.inputs[1:2])
    if node.op_type == "Gather":
        return _unshared(node.inputs[:1])
    if node.op_type == "MatMul":
        turn = edit.producer(node.inputs[1], "Transpose")
        if turn is None:
            return _unshared(node.inputs[1:])
        return _unshared(turn.inputs) if edit.only_user(turn.outputs[0]) is not None else None
    if node.op_type == "Add":
        for total, bias in (node.inputs, reversed(node.inputs)):
            product = edit.producer(total, "MatMul")
            if product is not None and edit.only_user(product.outputs[0]) is not None:
                weight, offset = _own(product), _unshared([bias])
                return [*weight, *offset] if weight is not None and offset is not None else None
    return None


def _unshared(values: Sequence[ir.Value | None]) -> list[ir.Value] | None:
    found = [v for v in values if v is not None and v.is_initializer() and edit.only_user(v) is not None]
    return found if len(found) == len(values) else None


def _scale(model: ir.Model, parameter: ir.Value, factor: float) -> None:
    array = edit.constant(parameter)
    if array is None or parameter.name is None:
        raise ValueError("not a parameter")
    parameter.const_value = ir.tensor(array * array.dtype.type(factor), name=parameter.name)
    key = SCALED + parameter.name
    model.metadata_props[key] = repr(factor * float(model.metadata_props.get(key, "1")))
