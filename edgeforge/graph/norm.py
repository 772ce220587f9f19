"""RMS normalisation: the exporter's six nodes become one RMSNormalization (ONNX opset 23).

x / sqrt(mean(x^2) + eps) * gamma. HTP runs it natively to 1 LSB; written as primitives, the Reciprocal
saturates (its constant 1 lives in the input's encoding) and the squares need a grid of their own.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeforge.graph import edit


class FuseRMSNorm(ir.passes.InPlacePass):
    """Pre: constants folded, casts dropped. Matches gamma * (x * 1/sqrt(mean(x*x) + eps)) over the last axis."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        return edit.rewrite(model, ("Mul",), _fuse)


def _fuse(scale: ir.Node) -> bool:
    for gamma, normed in (scale.inputs, reversed(scale.inputs)):
        if gamma is None or not gamma.is_initializer() or gamma.shape is None or len(gamma.shape) != 1:
            continue
        found = _normed(normed)
        if found is None:
            continue
        x, epsilon = found
        fused = edit.node_before(
            scale, "RMSNormalization", [x, gamma], f"{scale.outputs[0].name}/fused", edit.known_dims(scale.outputs[0]),
            [ir.AttrInt64("axis", -1), ir.AttrFloat32("epsilon", epsilon)])
        edit.take_over(scale.outputs[0], fused)
        return True
    return False


def _normed(value: ir.Value | None) -> tuple[ir.Value, float] | None:
    """x and eps when value = x * 1/sqrt(mean(x^2, -1) + eps), or x / sqrt(...)."""
    node = edit.producer(value, "Mul", "Div")
    if node is None:
        return None
    pairs = [tuple(node.inputs)] if node.op_type == "Div" else [tuple(node.inputs), tuple(reversed(node.inputs))]
    for x, inverse in pairs:
        root = inverse if node.op_type == "Div" else _input(inverse, "Reciprocal")
        total = edit.producer(_input(root, "Sqrt"), "Add")
        if x is None or total is None:
            continue
        for mean, epsilon in (total.inputs, reversed(total.inputs)):
            number = edit.scalar(epsilon)
            reduce = edit.producer(mean, "ReduceMean")
            if number is not None and reduce is not None and _over_last(reduce) and _square_of(reduce.inputs[0]) is x:
                return x, number
    return None


def _input(value: ir.Value | None, op_type: str) -> ir.Value | None:
    node = edit.producer(value, op_type)
    return node.inputs[0] if node is not None else None


def _over_last(reduce: ir.Node) -> bool:
    axes = edit.ints(reduce.inputs[1]) if len(reduce.inputs) > 1 else None
    value = reduce.inputs[0]
    rank = len(value.shape) if value is not None and value.shape is not None else 0
    keep = reduce.attributes.get("keepdims")
    return axes is not None and axes in ([-1], [rank - 1]) and (keep is None or keep.as_int() == 1)


def _square_of(value: ir.Value | None) -> ir.Value | None:
    node = edit.producer(value, "Pow", "Mul")
    if node is None:
        return None
    if node.op_type == "Pow":
        return node.inputs[0] if edit.scalar(node.inputs[1]) == 2.0 else None
    return node.inputs[0] if node.inputs[0] is node.inputs[1] else None
