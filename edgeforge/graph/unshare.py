"""A constant that plays several parts gets a copy for each, because each part has a grid of its own.

Exporters merge equal tensors: one vector of zeros is the bias of ten products and of a norm. A bias lives on
its product's grid, a weight has a scale for each output channel, a norm's gain is symmetric.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeforge.graph import edit
from edgeforge.quantize import roles


class UnshareConstants(ir.passes.InPlacePass):
    """Post: all uses of a real constant want the same grid. The first use keeps the name."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        changed = False
        for value in [v for v in model.graph.initializers.values() if roles.is_real(v)]:
            kept: roles.Part | None = None
            copies: dict[roles.Part, ir.Value] = {}
            for use in list(value.uses()):
                part = roles.part(use.node, use.idx)
                kept = kept or part
                if part == kept:
                    continue
                if part not in copies:
                    copies[part] = _copy(model.graph, value, use.node)
                    changed = True
                use.node.replace_input_with(use.idx, copies[part])
        return ir.passes.PassResult(model, changed)


def _copy(graph: ir.Graph, value: ir.Value, reader: ir.Node) -> ir.Value:
    array = edit.constant(value)
    if array is None:
        raise ValueError(f"{value.name} is not a constant")
    return edit.initializer(graph, edit.fresh(graph, f"{value.name}/of/{reader.outputs[0].name}"), array)
