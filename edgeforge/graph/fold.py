"""Constant folding and shape inference by onnxsim, with the parameters out of its reach.

onnxsim sees the model's weights as inputs: it can neither merge equal ones, rename them, nor fold a
transposed copy. What it hands back is checked: same parameters, same inputs and outputs, and every
value that has a name in the result had it before.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir
import onnxsim
from onnx_ir.passes import common

from edgeforge.errors import EdgeForgeError

_PLUMBING_BYTES = 64
"""integers and single numbers up to this size are plumbing and may fold; every other initializer is opaque"""


def fold(model: ir.Model) -> ir.Model:
    """Folds constants; returns a new model that shares the parameters' tensors with the old one."""
    parameters = {name: value for name, value in model.graph.initializers.items() if _is_parameter(value)}
    lift_constants(model)
    inputs = [v.name for v in model.graph.inputs]
    outputs = [v.name for v in model.graph.outputs]
    before = {o.name for n in model.graph for o in n.outputs} | set(model.graph.initializers)
    roles = {n.outputs[0].name: dict(n.metadata_props) for n in model.graph if n.metadata_props}
    folded = _simplify(model, parameters)
    graph = folded.graph
    _restore(graph, parameters)
    if [v.name for v in graph.inputs] != inputs or [v.name for v in graph.outputs] != outputs:
        raise EdgeForgeError("constant folding changed the graph's inputs or outputs", "please report it")
    strangers = {o.name for n in graph for o in n.outputs} - before
    if strangers:
        raise EdgeForgeError(f"constant folding renamed values: {sorted(map(str, strangers))[:5]}",
                             "please report it")
    for node in graph:
        node.metadata_props.update(roles.get(node.outputs[0].name, {}))
    folded.metadata_props.update(model.metadata_props)
    lift_constants(folded)
    return folded


def lift_constants(model: ir.Model) -> None:
    """Constant nodes become initializers, where every pass can read them."""
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)


def _is_parameter(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None:
        return False
    return tensor.nbytes > _PLUMBING_BYTES or (tensor.size > 1 and not tensor.dtype.is_integer())


def _simplify(model: ir.Model, parameters: dict[str, ir.Value]) -> ir.Model:
    for value in parameters.values():
        model.graph.initializers.pop(str(value.name))
        model.graph.inputs.append(value)
    try:
        simplified: onnx.ModelProto = onnxsim.simplify(ir.to_proto(model), perform_optimization=False)[0]
    finally:
        del model.graph.inputs[len(model.graph.inputs) - len(parameters):]
        for value in parameters.values():
            model.graph.register_initializer(value)
    onnx.checker.check_model(simplified)
    return ir.from_proto(simplified)


def _restore(graph: ir.Graph, parameters: dict[str, ir.Value]) -> None:
    for value in list(graph.inputs):
        if value.name in parameters:
            graph.inputs.remove(value)
            value.const_value = parameters[value.name].const_value
            if value.uses():
                graph.register_initializer(value)
