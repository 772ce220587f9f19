"""Hidden states as [1, 1, S, C] throughout: the rank that HTP's convolutions take without a reshape."""

from __future__ import annotations

import onnx_ir as ir

from edgeforge.graph import edit

_POINTWISE = {"Add", "Sub", "Mul", "Div", "Sigmoid", "Tanh", "Gelu", "Erf", "Neg", "Sqrt", "RMSNormalization",
              "Softmax", "Swish", "Relu", "Identity"}


class LiftRank(ir.passes.InPlacePass):
    """Rewrites pointwise ops on [1, S, C] to [1, 1, S, C] between an Unsqueeze and a Squeeze.

    The views of neighbours cancel (see views.py); what remains stands at the graph's edges.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        changed = False
        for node in list(model.graph):
            shape = edit.dims(node.outputs[0])
            if node.op_type in _POINTWISE and shape is not None and len(shape) == 3 and shape[0] == 1:
                _lift(model.graph, node)
                changed = True
        return ir.passes.PassResult(model, changed)


def _lifted(anchor: ir.Node, value: ir.Value, axis: ir.Value) -> ir.Value:
    """value as [1, 1, S, C], made once."""
    name = f"{value.name}/lifted"
    for use in value.uses():
        if use.node.outputs[0].name == name:
            return use.node.outputs[0]
    shape = [1, *edit.known_dims(value)]
    maker = value.producer()
    if maker is not None:
        return edit.node_after(maker, "Unsqueeze", [value, axis], name, shape)
    return edit.node_before(anchor, "Unsqueeze", [value, axis], name, shape)


def _lift(graph: ir.Graph, node: ir.Node) -> None:
    out = node.outputs[0]
    shape = edit.known_dims(out)
    axis = edit.int_vector(graph, [1])
    for i, value in enumerate(node.inputs):
        if value is not None and not value.is_initializer() and len(edit.known_dims(value)) == 3:
            node.replace_input_with(i, _lifted(node, value, axis))
    along = node.attributes.get("axis")
    if along is not None and along.as_int() >= 0:
        node.attributes["axis"] = ir.AttrInt64("axis", along.as_int() + 1)
    edit.set_shape(out, [1, *shape])
    flat = ir.Value(name=f"{out.name}/flat", shape=ir.Shape(shape), type=out.type)
    squeeze = ir.Node("", "Squeeze", [out, axis], outputs=[flat], name=f"{flat.name}:Squeeze")
    leaves = out.is_graph_output()
    for use in list(out.uses()):
        if use.node is not squeeze:
            use.node.replace_input_with(use.idx, flat)
    graph.insert_after(node, squeeze)
    if leaves:
        name = out.name
        place = next(i for i, o in enumerate(graph.outputs) if o is out)
        graph.outputs[place] = flat
        out.name, flat.name = f"{name}/lifted", name
