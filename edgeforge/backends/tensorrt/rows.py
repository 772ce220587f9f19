"""One row alone is read twice where 8-bit weights meet float16.

For a single row TensorRT-RTX 1.7.1 unpacks such weights (int8 or E4M3, with a scale a channel; no small ones) to
float16, all of them, at every step; for two rows or more it multiplies by the codes as they are (its layer dump). So a
lone row gets a copy beside it, and the product's second row is dropped; with more rows nothing is added, and in a
profile of fixed shape nothing is left of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from edgeforge_runtime.manifest import IDS
from onnx_ir.passes import common

from edgeforge.backends.tensorrt.weights import Packed, products
from edgeforge.graph import edit

_LEAST = 2
_ROWS = "rows"
"""name of the dimension: AR, or 2 where AR is 1"""


def double(model: ir.Model, packed: Mapping[str, Packed]) -> int:
    """In place; returns for how many products. Before weights.write."""
    graph, count, made = model.graph, 0, dict[ir.Value, ir.Value]()
    for product in list(products(graph)):
        mine = packed.get(str(product.weight.name))
        if mine is None or mine.block is not None or edit.producer(product.x, "DequantizeLinear") is not None:
            continue
        node, out = product.node, product.node.outputs[0]
        if product.x not in made:
            made[product.x] = _at_least_two(graph, node, product.x)
        node.replace_input_with(0, made[product.x])
        shape = edit.known_dims(out)
        every = edit.node_before(node, "MatMul", list(node.inputs), f"{out.name}/rows", [shape[0], _ROWS, *shape[2:]])
        bounds = [edit.int_vector(graph, [0]), _width(graph), edit.int_vector(graph, [1])]
        own = edit.node_before(node, "Slice", [every, *bounds], f"{out.name}/own", shape)
        edit.take_over(out, own)
        count += 1
    common.RemoveUnusedNodesPass()(model)
    return count


def _at_least_two(graph: ir.Graph, anchor: ir.Node, x: ir.Value) -> ir.Value:
    """[1, S, K] -> [1, max(S, 2), K], the first row again."""
    shape = edit.known_dims(x)
    bounds = [edit.int_vector(graph, [0]), _missing(graph), edit.int_vector(graph, [1])]
    more = edit.node_before(anchor, "Slice", [x, *bounds], f"{x.name}/again", [shape[0], "missing", *shape[2:]])
    return edit.node_before(anchor, "Concat", [x, more], f"{x.name}/rows", [shape[0], _ROWS, *shape[2:]],
                            [ir.AttrInt64("axis", 1)])


def _width(graph: ir.Graph) -> ir.Value:
    """AR, int64 [1]; made once a graph."""
    ids = next(v for v in graph.inputs if v.name == IDS)
    for use in ids.uses():
        if use.node.op_type == "Shape":
            return use.node.outputs[0]
    width = edit.node_before(graph[0], "Shape", [ids], f"{IDS}/width", [1],
                             [ir.AttrInt64("start", 1), ir.AttrInt64("end", 2)])
    width.type = ir.TensorType(ir.DataType.INT64)
    return width


def _missing(graph: ir.Graph) -> ir.Value:
    """max(2 - AR, 0), int64 [1]; made once a graph."""
    width = _width(graph)
    for use in width.uses():
        if use.node.op_type == "Sub":
            return next(iter(use.node.outputs[0].uses())).node.outputs[0]
    node = width.producer()
    if node is None:
        raise ValueError("the width has no producer")
    missing = edit.node_after(node, "Sub", [edit.int_vector(graph, [_LEAST]), width], f"{IDS}/missing", [1])
    after = missing.producer()
    if after is None:
        raise ValueError("a node without an output")
    return edit.node_after(after, "Max", [missing, edit.int_vector(graph, [0])], f"{IDS}/again", [1])
