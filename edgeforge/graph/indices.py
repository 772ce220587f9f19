"""Integers as NPUs take them: 32 bits at the inputs, no negative indices, no look-up that only reorders nothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgeforge.graph import edit

_INDEXED = {"Gather": 1, "GatherElements": 1, "GatherND": 1, "Cast": 0}
"""which input may be of either integer type, by op"""


class NarrowInputs(ir.passes.InPlacePass):
    """int64 graph inputs become int32; a Cast widens them again where an op wants 64 bits."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        graph = model.graph
        found = [v for v in graph.inputs if v.dtype == ir.DataType.INT64]
        for value in found:
            value.type = ir.TensorType(ir.DataType.INT32)
            strict = [u for u in list(value.uses()) if _INDEXED.get(u.node.op_type) != u.idx]
            if strict:
                wide = edit.node_before(graph[0], "Cast", [value], edit.fresh(graph, f"{value.name}/wide"),
                                        edit.known_dims(value), [ir.AttrInt64("to", ir.DataType.INT64.value)])
                wide.type = ir.TensorType(ir.DataType.INT64)
                for use in strict:
                    use.node.replace_input_with(use.idx, wide)
        return ir.passes.PassResult(model, bool(found))


class PlainIndices(ir.passes.InPlacePass):
    """A Gather or GatherND that takes every element in order becomes a Reshape; negative indices become positive."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        return edit.rewrite(model, ("Gather", "GatherND"), lambda node: _plain(model.graph, node))


def _plain(graph: ir.Graph, node: ir.Node) -> bool:
    source, indices = node.inputs[0], edit.constant(node.inputs[1])
    shape = edit.dims(source) if source is not None else None
    if source is None or indices is None or shape is None or not all(isinstance(d, int) for d in shape):
        return False
    sizes = [d for d in shape if isinstance(d, int)]
    out = node.outputs[0]
    order = _taken(node, sizes, indices)
    if order is not None and order.size == np.prod(sizes) and (order.ravel() == np.arange(order.size)).all():
        view = edit.node_before(node, "Reshape", [source, edit.int_vector(graph, list(order.shape))],
                                f"{out.name}/view", list(order.shape))
        edit.take_over(out, view)
        return True
    if node.op_type == "Gather" and (indices < 0).any():
        positive = np.where(indices < 0, indices + sizes[_axis(node)], indices)
        name = f"{node.inputs[1].name if node.inputs[1] else out.name}/positive"
        node.replace_input_with(1, edit.initializer(graph, name, positive.astype(indices.dtype)))
        return True
    return False


def _axis(node: ir.Node) -> int:
    axis = node.attributes.get("axis")
    return axis.as_int() if axis is not None else 0


def _taken(node: ir.Node, shape: list[int], indices: npt.NDArray[np.integer]) -> npt.NDArray[np.int64] | None:
    """Which element of the source each element of the output is."""
    elements = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    if node.op_type == "Gather":
        return np.take(elements, indices, _axis(node))
    batch = node.attributes.get("batch_dims")
    if batch is not None and batch.as_int():
        return None
    return np.asarray(elements[tuple(np.moveaxis(indices, -1, 0))])
