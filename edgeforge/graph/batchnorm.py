"""BatchNormalization in inference: folded into the convolution before it, else written as a factor and an offset."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes import common

from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit

Vector = npt.NDArray[np.float64]


class FoldBatchNorm(ir.passes.InPlacePass):
    """Post: no BatchNormalization. A convolution's weight keeps its name when nobody else reads it.

    Raises:
        UnsupportedError: training mode, or statistics that are not constant.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [n for n in model.graph if n.op_type == "BatchNormalization"]
        for node in found:
            factor, offset = _affine(node)
            conv = edit.producer(node.inputs[0], "Conv")
            if conv is not None and _foldable(conv):
                _into(model.graph, conv, factor, offset, str(node.inputs[2].name) if node.inputs[2] else "bias")
                edit.take_over(node.outputs[0], conv.outputs[0])
            else:
                _spell_out(model.graph, node, factor, offset)
        common.RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, bool(found))


def _affine(node: ir.Node) -> tuple[Vector, Vector]:
    training = node.attributes.get("training_mode")
    arrays = [edit.constant(v) for v in node.inputs[1:5]]
    if (training is not None and training.as_int()) or any(a is None for a in arrays):
        raise UnsupportedError(f"{node.outputs[0].name}: a BatchNormalization that still learns",
                               "export the model in evaluation mode (model.eval())")
    gamma, beta, mean, variance = (np.asarray(a, np.float64) for a in arrays)
    epsilon = node.attributes.get("epsilon")
    factor = gamma / np.sqrt(variance + (epsilon.as_float() if epsilon is not None else 1e-5))
    return factor, beta - mean * factor


def _foldable(conv: ir.Node) -> bool:
    return edit.only_user(conv.outputs[0]) is not None and all(
        v is None or v.is_initializer() for v in conv.inputs[1:])


def _into(graph: ir.Graph, conv: ir.Node, factor: Vector, offset: Vector, name: str) -> None:
    weight, bias = conv.inputs[1], conv.inputs[2] if len(conv.inputs) > 2 else None
    array, old = edit.constant(weight), edit.constant(bias)
    if weight is None or array is None:
        raise ValueError(f"{conv.name}: its weight is not constant")
    scaled = array * factor.reshape(-1, *[1] * (array.ndim - 1))
    shifted = offset if old is None else old * factor + offset
    conv.replace_input_with(1, _renewed(graph, weight, scaled))
    conv.resize_inputs(3)
    conv.replace_input_with(2, edit.initializer(graph, edit.fresh(graph, f"{name}/folded"), shifted.astype(np.float32)))


def _renewed(graph: ir.Graph, value: ir.Value, array: npt.NDArray[np.float64]) -> ir.Value:
    if edit.only_user(value) is None:
        return edit.initializer(graph, edit.fresh(graph, f"{value.name}/folded"), array.astype(np.float32))
    value.const_value = ir.tensor(array.astype(np.float32), name=value.name)
    return value


def _spell_out(graph: ir.Graph, node: ir.Node, factor: Vector, offset: Vector) -> None:
    x, out = node.inputs[0], node.outputs[0]
    shape = edit.known_dims(out)
    view = [1, -1, *[1] * (len(shape) - 2)]
    scale, shift = (edit.initializer(graph, edit.fresh(graph, f"{out.name}/{tail}"), a.reshape(view).astype(np.float32))
                    for tail, a in (("factor", factor), ("offset", offset)))
    scaled = edit.node_before(node, "Mul", [x, scale], f"{out.name}/scaled", shape)
    edit.take_over(out, edit.node_before(node, "Add", [scaled, shift], f"{out.name}/shifted", shape))
