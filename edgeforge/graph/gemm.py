"""Gemm in the one form that compilers take: activations by a weight, plus a bias vector. Others are spelled out."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from edgeforge.graph import edit


class PlainGemm(ir.passes.InPlacePass):
    """Post: a Gemm has a constant weight, no factors, no transposed activations, and a 1-D bias or none.

    A constant bias may be [1, N], [1] or a number: it becomes [N]. Anything else is a MatMul and an Add.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [n for n in model.graph if n.op_type == "Gemm"]
        for node in found:
            if not _fit(model.graph, node):
                _spell_out(model.graph, node)
        common.RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, bool(found))


def _number(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else float(attribute.value)


def _fit(graph: ir.Graph, node: ir.Node) -> bool:
    """Is node in that form, or can its bias be written so?"""
    factors = _number(node, "alpha", 1.0), _number(node, "beta", 1.0), _number(node, "transA", 0.0)
    if factors != (1.0, 1.0, 0.0) or edit.constant(node.inputs[1]) is None:
        return False
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is None:
        return True
    array, width = edit.constant(bias), edit.known_dims(node.outputs[0])[-1]
    if array is None or array.size not in (1, width) or (array.ndim and array.shape[-1] != array.size):
        return False
    if array.shape != (width,):
        flat = array.reshape(-1).repeat(int(width) // array.size)
        node.replace_input_with(2, edit.initializer(graph, f"{bias.name}/flat", flat))
    return True


def _spell_out(graph: ir.Graph, node: ir.Node) -> None:
    out, shape = node.outputs[0], edit.known_dims(node.outputs[0])

    def scaled(value: ir.Value, name: str, tail: str) -> ir.Value:
        factor = _number(node, name, 1.0)
        if factor == 1.0:
            return value
        number = edit.initializer(graph, f"{out.name}/{name}", edit.float_scalar(factor))
        return edit.node_before(node, "Mul", [value, number], f"{out.name}/{tail}", edit.known_dims(value))

    def turned(value: ir.Value, name: str, tail: str) -> ir.Value:
        if not _number(node, name, 0.0):
            return value
        array = edit.constant(value)
        if array is not None:
            return edit.initializer(graph, f"{value.name}/transposed", array.T)
        return edit.node_before(node, "Transpose", [value], f"{out.name}/{tail}", edit.known_dims(value)[::-1],
                                [ir.AttrInt64s("perm", [1, 0])])

    a, b = node.inputs[:2]
    if a is None or b is None:
        raise ValueError(f"{node.name} lacks an input")
    operands = [turned(a, "transA", "a"), turned(b, "transB", "b")]
    product = scaled(edit.node_before(node, "MatMul", operands, f"{out.name}/product", shape), "alpha", "scaled")
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None:
        terms = [product, scaled(bias, "beta", "bias")]
        product = edit.node_before(node, "Add", terms, f"{out.name}/sum", shape)
    edit.take_over(out, product)
