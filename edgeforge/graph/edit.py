"""Small moves on an onnx_ir graph that every pass needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes import common

Dim = int | str

AR, PAST = "ar", "past"
"""names of the symbolic dimensions: new tokens, cached tokens"""


def rewrite(model: ir.Model, op_types: tuple[str, ...], change: Callable[[ir.Node], bool]) -> ir.passes.PassResult:
    """Offers every node of op_types to change, in graph order; what it leaves without a reader is removed.

    Args:
        change: rewrites the graph around a node; False when there was nothing to do.
    """
    changed = False
    for node in [n for n in model.graph if n.op_type in op_types]:
        changed |= change(node)
    if changed:
        common.RemoveUnusedNodesPass()(model)
    return ir.passes.PassResult(model, changed)


def constant(value: ir.Value | None) -> npt.NDArray[Any] | None:
    """The array behind an initializer, or None."""
    if value is None or value.const_value is None or not value.is_initializer():
        return None
    return value.const_value.numpy()


def is_weight(value: ir.Value) -> bool:
    """A constant, or one on its way through Quantize and Dequantize."""
    node = producer(value, "QuantizeLinear", "DequantizeLinear")
    return value.is_initializer() or (node is not None and all(v is None or is_weight(v) for v in node.inputs))


def scalar(value: ir.Value | None) -> float | None:
    """The number behind a one-element initializer, or None."""
    array = constant(value)
    return float(array.reshape(())) if array is not None and array.size == 1 else None


def ints(value: ir.Value | None) -> list[int] | None:
    """The integers behind a 1-D (or scalar) initializer, or None."""
    array = constant(value)
    if array is None or array.dtype.kind not in "iu":
        return None
    return [int(v) for v in array.reshape(-1)]


def dims(value: ir.Value) -> list[Dim] | None:
    """Shape as ints and symbol strings; None when unknown or when a dimension has no name."""
    if value.shape is None:
        return None
    out: list[Dim] = []
    for d in value.shape:
        if isinstance(d, int):
            out.append(d)
        elif d.value is None:
            return None
        else:
            out.append(str(d.value))
    return out


def known_dims(value: ir.Value) -> list[Dim]:
    """Like dims, for passes that require shape inference to have run."""
    found = dims(value)
    if found is None:
        raise ValueError(f"value {value.name} has no known shape")
    return found


def set_shape(value: ir.Value, shape: Sequence[Dim]) -> None:
    value.shape = ir.Shape(list(shape))


def producer(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that makes value, when its type is one of op_types (any type when none is given)."""
    node = value.producer() if value is not None else None
    return node if node is not None and (not op_types or node.op_type in op_types) else None


def only_user(value: ir.Value) -> ir.Node | None:
    """The single node that reads value once; None when there are more, or it leaves the graph."""
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def unit_steps(node: ir.Node) -> bool:
    """Does a Slice take every element between its bounds, in order?"""
    if len(node.inputs) < 5 or node.inputs[4] is None:
        return True
    steps = ints(node.inputs[4])
    return steps is not None and all(step == 1 for step in steps)


def slice_bounds(node: ir.Node) -> dict[int, tuple[int, int]] | None:
    """{axis: (start, stop)} of a Slice with constant bounds and step 1 over known dimensions, else None."""
    shape = dims(node.inputs[0]) if node.inputs[0] is not None else None
    starts, stops = (ints(v) for v in node.inputs[1:3])
    if shape is None or starts is None or stops is None:
        return None
    axes = ints(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] is not None else list(range(len(starts)))
    if axes is None or not unit_steps(node):
        return None
    found: dict[int, tuple[int, int]] = {}
    for axis, start, stop in zip(axes, starts, stops, strict=True):
        size = shape[axis]
        if not isinstance(size, int):
            return None
        found[axis % len(shape)] = slice(start, stop).indices(size)[:2]
    return found


def replace(old: ir.Value, new: ir.Value) -> None:
    """Every reader of old reads new instead; a graph output keeps its name, whichever value makes it.

    Raises:
        ValueError: old leaves the graph, and new is an input, a parameter or itself an output.
    """
    graph = old.graph
    if old.is_graph_output() and (new.producer() is None or new.is_graph_output()):
        raise ValueError(f"graph output {old.name} cannot be {new.name}")
    for use in list(old.uses()):
        use.node.replace_input_with(use.idx, new)
    if graph is None or not old.is_graph_output():
        return
    outputs = graph.outputs
    place = next(i for i, out in enumerate(outputs) if out is old)
    name = old.name
    outputs[place] = new
    old.name = f"{name}/was"
    new.name = name


def take_over(old: ir.Value, new: ir.Value) -> None:
    """Like replace, and new takes old's name: for a rewrite that computes the same value."""
    name, leaves = old.name, old.is_graph_output()
    replace(old, new)
    if not leaves:
        old.name = f"{name}/was"
        new.name = name


def fresh(graph: ir.Graph | None, name: str) -> str:
    """name, or name_2, name_3 ... : the first that no value of graph bears."""
    taken = names(graph) if graph is not None else set()
    if name not in taken:
        return name
    k = 2
    while f"{name}_{k}" in taken:
        k += 1
    return f"{name}_{k}"


def names(graph: ir.Graph) -> set[str]:
    """All value names of graph."""
    found = {v.name for v in graph.inputs} | set(graph.initializers)
    found |= {o.name for n in graph for o in n.outputs}
    return {n for n in found if n is not None}


def initializer(graph: ir.Graph, name: str, array: npt.NDArray[np.generic]) -> ir.Value:
    """A constant under name; the same array under the same name is made once."""
    have = graph.initializers.get(name)
    if have is not None:
        old = constant(have)
        if old is not None and old.dtype == array.dtype and np.array_equal(old, array):
            return have
        name = fresh(graph, name)
    tensor = ir.tensor(np.asarray(array, order="C"), name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def int_vector(graph: ir.Graph, values: Sequence[int]) -> ir.Value:
    """The shared int64 constant [values]."""
    return initializer(graph, "const.i64." + "_".join(str(v) for v in values), np.array(values, np.int64))


def float_scalar(number: float) -> npt.NDArray[np.float32]:
    """A float32 of rank 0, for initializer."""
    return np.array(number, np.float32)


def node_before(anchor: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], name: str,
                shape: Sequence[Dim], attributes: Sequence[ir.Attr] = ()) -> ir.Value:
    """Inserts one single-output node before anchor and returns its output, named and shaped.

    The output has the type of the first input. The caller derives a name from a value that it replaces;
    `store.save` refuses a name used twice.
    """
    return nodes_before(anchor, op_type, inputs, {name: shape}, attributes)[0]


def nodes_before(anchor: ir.Node, op_type: str, inputs: Sequence[ir.Value | None],
                 outputs: Mapping[str, Sequence[Dim]], attributes: Sequence[ir.Attr] = ()) -> list[ir.Value]:
    """Like node_before, for a node with several outputs: their names and shapes."""
    node = _node(op_type, inputs, outputs, attributes)
    _graph(anchor).insert_before(anchor, node)
    return list(node.outputs)


def node_after(anchor: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], name: str,
               shape: Sequence[Dim], attributes: Sequence[ir.Attr] = ()) -> ir.Value:
    """Like node_before, behind anchor."""
    node = _node(op_type, inputs, {name: shape}, attributes)
    _graph(anchor).insert_after(anchor, node)
    return node.outputs[0]


def _node(op_type: str, inputs: Sequence[ir.Value | None], outputs: Mapping[str, Sequence[Dim]],
          attributes: Sequence[ir.Attr]) -> ir.Node:
    dtype = (inputs[0].dtype if inputs[0] is not None else None) or ir.DataType.FLOAT
    values = [ir.Value(name=name, shape=ir.Shape(list(shape)), type=ir.TensorType(dtype))
              for name, shape in outputs.items()]
    return ir.Node("", op_type, inputs, attributes=attributes, outputs=values, name=f"{values[0].name}:{op_type}")


def _graph(node: ir.Node) -> ir.Graph:
    if not isinstance(node.graph, ir.Graph):
        raise ValueError(f"{node.name} is not in a graph")
    return node.graph
