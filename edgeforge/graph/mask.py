"""Attention masks of any exporter -> the one mask policy: a forbidden score is lowered by a bounded number.

-inf and finfo.min have no place on an integer grid: a range that reaches -3e38 leaves one code for everything
else. And with a bounded mask a row is never NaN, so what guards against that can go.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from edgeforge.graph import edit

_HUGE = -1e4
"""no sum of scores is this low: such a constant says "never", not how much"""
_CARRIES = {"Mul", "Where", "Add", "Sub", "Expand", "Reshape", "Unsqueeze", "Squeeze", "Slice", "Transpose", "Concat",
            "Identity"}
"""ops that may stand between a mask's constant and the Softmax"""


class BoundMask(ir.passes.InPlacePass):
    """Constants below -1e4 on their way to a Softmax become `masked`. Pre: constants are initializers.

    Only on that way: what else reads them, or a mask or scores made with them, reads what it did before.
    """

    def __init__(self, masked: float) -> None:
        super().__init__()
        self._masked = masked

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        changed = False
        for value in list(model.graph.initializers.values()):
            # Asked first, so that weights stay on disk.
            array = edit.constant(value) if _reaches_softmax(value) else None
            if array is not None and array.dtype.kind == "f" and array.size and array.min() <= _HUGE:
                bounded = np.where(array <= _HUGE, self._masked, array).astype(array.dtype)
                _bound(model.graph, value, edit.initializer(model.graph, f"{value.name}/bounded", bounded))
                changed = True
        for node in list(model.graph):
            if node.op_type == "Where" and _guards_nan(node) and node.inputs[2] is not None:
                edit.replace(node.outputs[0], node.inputs[2])
                changed = True
        common.RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, changed)


def _bound(graph: ir.Graph, value: ir.Value, bounded: ir.Value) -> None:
    """Every way from value to a Softmax starts from bounded instead; a node that others read too is made twice."""
    readers: dict[ir.Node, list[int]] = {}
    for use in value.uses():
        readers.setdefault(use.node, []).append(use.idx)
    for node, places in readers.items():
        if node.op_type != "Softmax" and not (node.op_type in _CARRIES and any(map(_reaches_softmax, node.outputs))):
            continue
        if node.op_type == "Softmax" or not any(map(_goes_elsewhere, node.outputs)):
            for place in places:
                node.replace_input_with(place, bounded)
        else:
            inputs = [bounded if place in places else given for place, given in enumerate(node.inputs)]
            copy = _copy(graph, node, inputs)
            for old, new in zip(node.outputs, copy.outputs, strict=True):
                _bound(graph, old, new)


def _copy(graph: ir.Graph, node: ir.Node, inputs: list[ir.Value | None]) -> ir.Node:
    outputs = [ir.Value(name=edit.fresh(graph, f"{o.name}/bounded"), shape=o.shape, type=o.type) for o in node.outputs]
    copy = ir.Node(node.domain, node.op_type, inputs, attributes=node.attributes, outputs=outputs,
                   name=f"{outputs[0].name}:{node.op_type}")
    graph.insert_after(node, copy)
    return copy


def _reaches_softmax(value: ir.Value) -> bool:
    return any(node is not None and node.op_type == "Softmax" for node in _ends(value))


def _goes_elsewhere(value: ir.Value) -> bool:
    return any(node is None or node.op_type != "Softmax" for node in _ends(value))


def _ends(value: ir.Value) -> Iterator[ir.Node | None]:
    """Where value comes to: the first nodes that do not just carry it; None for the graph's output."""
    todo, seen = [value], {value}
    while todo:
        here = todo.pop()
        if here.is_graph_output():
            yield None
        for use in here.uses():
            if use.node.op_type not in _CARRIES:
                yield use.node
                continue
            todo += [o for o in use.node.outputs if o not in seen]
            seen.update(use.node.outputs)


def _guards_nan(node: ir.Node) -> bool:
    """Where(IsNaN(p), 0, p), p being a Softmax: NaN only where a whole row was -inf."""
    test = edit.producer(node.inputs[0], "IsNaN")
    return (test is not None and test.inputs[0] is node.inputs[2] and edit.scalar(node.inputs[1]) == 0
            and edit.producer(node.inputs[2], "Softmax") is not None)
