"""What a graph computes from constants alone, computed once; and the shape of everything else.

onnxscript's folding evaluates the nodes one by one, so weights stay memory-mapped until a node wants them,
and no model is ever written as one protobuf (which ends at 2 GB).
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.optimizer import fold_constants

from edgeforge.graph import edit, fold
from edgeforge.graph.views import perm

_GROWTH = 1 << 22
"""elements that folding may add: a broadcast mask or table beyond that is better computed, or not there"""


class FoldConstants(ir.passes.InPlacePass):
    """Post: no node has constants alone for inputs (but for huge results); every shape is known.

    A weight that is transposed on its way to its product says so: `x.weight/transposed`.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        for node in [n for n in model.graph if n.op_type == "Transpose"]:
            _turn(model.graph, node)
        fold_constants(model, onnx_shape_inference=True, input_size_limit=_GROWTH, output_size_limit=_GROWTH,
                       should_fold=_all_constant)
        fold.lift_constants(model)
        common.ShapeInferencePass()(model)
        common.RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, True)


def _all_constant(node: ir.Node) -> bool | None:
    """Weights fold whatever their size: what comes out of a pointwise op or a view is no larger."""
    constant = node.inputs and all(v is None or v.is_initializer() for v in node.inputs)
    return True if constant and node.op_type not in ("Expand", "Tile") else None


def _turn(graph: ir.Graph, node: ir.Node) -> None:
    source, out = node.inputs[0], node.outputs[0]
    array = edit.constant(source)
    if source is None or array is None or out.is_graph_output():
        return
    edit.replace(out, edit.initializer(graph, f"{source.name}/transposed", array.transpose(perm(node))))
    graph.remove(node, safe=True)
