"""A symbolic graph at one width: AR new tokens against CL - AR cached ones, every shape a number."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from edgeforge.errors import EdgeForgeError
from edgeforge.graph import edit, static
from edgeforge.graph.edit import AR, PAST, Dim


def bind(model: ir.Model, ar: int, cl: int) -> ir.Model:
    """Writes numbers for the symbolic dimensions, in place; returns the model.

    Raises:
        EdgeForgeError: a dimension is left that neither AR nor the past explains (named with its value).
    """
    known = {AR: ar, PAST: cl - ar}
    graph = model.graph
    for value in [*graph.inputs, *(o for n in graph for o in n.outputs)]:
        shape = edit.dims(value)
        if shape is not None:
            edit.set_shape(value, [_number(d, known, value) for d in shape])
    for node in list(graph):
        if node.op_type == "Reshape":
            target = [d for d in edit.known_dims(node.outputs[0]) if isinstance(d, int)]
            node.replace_input_with(1, edit.int_vector(graph, target))
        elif node.op_type == "Slice":
            static.clamp(graph, node)
    common.RemoveUnusedNodesPass()(model)
    return model


def _number(dim: Dim, known: dict[str, int], value: ir.Value) -> int:
    if isinstance(dim, int):
        return dim
    terms = [t.strip() for t in dim.split("+")]
    if not all(t in known for t in terms):
        raise EdgeForgeError(f"{value.name} has an open dimension {dim!r}",
                             f"only {AR} and {PAST} are bound at compile time")
    return sum(known[t] for t in terms)
