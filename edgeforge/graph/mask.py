"""Attention masks of any exporter -> the one mask policy: a forbidden score is lowered by a bounded number.

-inf and finfo.min have no place on an integer grid: a range that reaches -3e38 leaves one code for everything
else. And with a bounded mask a row is never NaN, so what guards against that can go.
"""

from __future__ import annotations

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
    """Constants below -1e4 on their way to a Softmax become `masked`. Pre: constants are initializers."""

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
                edit.replace(value, edit.initializer(model.graph, f"{value.name}/bounded", bounded))
                changed = True
        for node in list(model.graph):
            if node.op_type == "Where" and _guards_nan(node) and node.inputs[2] is not None:
                edit.replace(node.outputs[0], node.inputs[2])
                changed = True
        common.RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, changed)


def _reaches_softmax(value: ir.Value) -> bool:
    todo, seen = [value], set[ir.Value]()
    while todo:
        here = todo.pop()
        for use in here.uses():
            if use.node.op_type == "Softmax":
                return True
            if use.node.op_type in _CARRIES:
                todo += [o for o in use.node.outputs if o not in seen]
                seen.update(use.node.outputs)
    return False


def _guards_nan(node: ir.Node) -> bool:
    """Where(IsNaN(p), 0, p), p being a Softmax: NaN only where a whole row was -inf."""
    test = edit.producer(node.inputs[0], "IsNaN")
    return (test is not None and test.inputs[0] is node.inputs[2] and edit.scalar(node.inputs[1]) == 0
            and edit.producer(node.inputs[2], "Softmax") is not None)
