"""What a graph computes from constants alone, computed once; and the shape of everything else.

onnxscript's folding evaluates the nodes one by one, so weights stay memory-mapped until a node wants them,
and no model is ever written as one protobuf (which ends at 2 GB).
"""

from __future__ import annotations

import logging
import math

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx_ir.passes import common
from onnxscript.optimizer import fold_constants

from edgeforge.graph import edit, fold
from edgeforge.graph.views import perm

_GROWTH = 1 << 22
"""elements that folding may add: a broadcast mask or table beyond that is better computed, or not there"""
_GROWING = {"Expand", "Tile", "ConstantOfShape", "Range"}


class FoldConstants(ir.passes.InPlacePass):
    """Post: no node has constants alone for inputs (but for huge results, and the Dequantize behind a weight's codes);
    shapes are known where ONNX can say.

    A weight that is transposed on its way to its product says so: `x.weight/transposed`.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        logging.getLogger("onnxscript.optimizer").setLevel(logging.ERROR)  # its evaluator's failures are mended below
        for node in [n for n in model.graph if n.op_type == "Transpose"]:
            _turn(model.graph, node)
        changed = True
        while changed:
            fold_constants(model, onnx_shape_inference=True, input_size_limit=_GROWTH, output_size_limit=_GROWTH,
                           should_fold=_all_constant)
            fold.lift_constants(model)
            changed = sum(_evaluate(model, node) for node in list(model.graph)) > 0
        common.ShapeInferencePass()(model)
        common.RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, True)


def _all_constant(node: ir.Node) -> bool | None:
    """Weights fold whatever their size: what comes out of a pointwise op or a view is no larger."""
    if node.op_type == "DequantizeLinear":
        return _is_constant(node)
    return True if _is_constant(node) and node.op_type not in _GROWING else None


def _is_constant(node: ir.Node) -> bool:
    """Does it fold? A Dequantize does only on the way to a Quantize: without one its codes would become floats."""
    if node.op_type == "DequantizeLinear" and not all(u.node.op_type == "QuantizeLinear"
                                                      for u in node.outputs[0].uses()):
        return False
    return bool(node.inputs) and all(v is None or v.is_initializer() for v in node.inputs)


def _small(node: ir.Node) -> bool:
    """Does folding node add little?"""
    if node.op_type not in _GROWING:
        return True
    shape = edit.dims(node.outputs[0])
    return shape is not None and math.prod(d if isinstance(d, int) else _GROWTH for d in shape) <= _GROWTH


def _evaluate(model: ir.Model, node: ir.Node) -> bool:
    """Folds by onnxruntime what the reference evaluator could not (GatherElements of onnx 1.23 is one)."""
    if not _is_constant(node) or not _small(node) or any(o.is_graph_output() for o in node.outputs):
        return False
    feeds = {str(v.name): v.const_value.numpy() for v in node.inputs if v is not None and v.const_value is not None}
    kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in feeds.items()}
    graph = onnx.helper.make_graph(
        [ir.to_proto(node)], "constant",
        [onnx.helper.make_tensor_value_info(name, kinds[name], list(array.shape)) for name, array in feeds.items()],
        [onnx.ValueInfoProto(name=o.name) for o in node.outputs if o.name])
    imports = [onnx.helper.make_opsetid("", model.graph.opset_imports[""])]
    alone = onnx.helper.make_model(graph, opset_imports=imports, ir_version=model.ir_version)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        made = ort.InferenceSession(alone.SerializeToString(), options).run(None, feeds)
    except Exception:  # onnxruntime raises a dozen unrelated classes; whoever reads the node will say what is wrong
        return False
    for out, array in zip([o for o in node.outputs if o.name], made, strict=True):
        name, out.name = str(out.name), f"{out.name}/was"
        edit.replace(out, edit.initializer(model.graph, name, np.asarray(array)))
    model.graph.remove(node, safe=True)
    return True


def _turn(graph: ir.Graph, node: ir.Node) -> None:
    source, out = node.inputs[0], node.outputs[0]
    array = edit.constant(source)
    if source is None or array is None or out.is_graph_output():
        return
    edit.replace(out, edit.initializer(graph, f"{source.name}/transposed", array.transpose(perm(node))))
    graph.remove(node, safe=True)
