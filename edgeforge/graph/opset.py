"""Older opsets raised to what the passes and the QDQ printing speak.

From 18 on onnxscript's converter knows every change. Before it, in 17, the reductions' axes were an
attribute, and a Split into equal pieces did not say into how many.
"""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript import version_converter

from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit

LEAST, MOST, OURS = 17, 24, 23
_REDUCTIONS = {f"Reduce{kind}" for kind in (
    "Max", "Min", "Mean", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")}


def upgrade(model: ir.Model, path: Path) -> None:
    """Raises a model of opset 17 to 22 to 23, in place.

    Raises:
        UnsupportedError: an opset outside 17 to 24.
    """
    version = model.graph.opset_imports.get("", 0)
    if not LEAST <= version <= MOST:
        raise UnsupportedError(f"{path}: opset {version}; {LEAST} to {MOST} are understood",
                               f"export with opset_version={OURS}, or convert with onnx.version_converter")
    if version < 18:
        for node in list(model.graph):
            if node.op_type in _REDUCTIONS and (axes := node.attributes.pop("axes", None)) is not None:
                vector = edit.int_vector(model.graph, [int(a) for a in axes.as_ints()])
                node.resize_inputs(2)
                node.replace_input_with(1, vector)
            elif node.op_type == "Split" and len(node.inputs) < 2:
                node.attributes["num_outputs"] = ir.AttrInt64("num_outputs", len(node.outputs))
            node.version = None
        model.graph.opset_imports[""] = 18
    if version < OURS:
        version_converter.convert_version(model, OURS)
        common.RemoveUnusedOpsetsPass()(model)
