"""The encodings printed as ONNX: QuantizeLinear/DequantizeLinear around every value, codes at the edges.

In the printed graph the tensor of codes bears the value's name (so a graph output, a cache entry and a
weight are called what they are called everywhere); its real form is `<name>/dq`.
"""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import onnx_ir as ir

from edgeforge import float8
from edgeforge.encoding import TOP, expansion
from edgeforge.encodings import Encoding, Table, reals
from edgeforge.errors import EdgeForgeError
from edgeforge.graph import edit
from edgeforge.quantize import assign, roles
from edgeforge.quantize.weights.palette import Palette
from edgeforge.targets import Flow

_TYPES = {"uint16": ir.DataType.UINT16, "int16": ir.DataType.INT16, "uint8": ir.DataType.UINT8,
          "int8": ir.DataType.INT8, "int4": ir.DataType.INT4, "uint4": ir.DataType.UINT4,
          float8.NAME: ir.DataType.FLOAT8E4M3FN}
_MIN_OPSET = 23


def quantize(model: ir.Model, table: Table, flow: Flow = "codes", palettes: Mapping[str, Palette] | None = None,
             ) -> ir.Model:
    """Rewrites a float model (opset >= 23) into its QDQ form, in place; returns it.

    Graph inputs and outputs become integer, on the grids the table gives them. Biases become int32 on the
    grid of their product (input scale x weight scale). Where float16 flows, the table need not cover the graph: what
    it does not name stays as it is, and so do biases. What palettes name is read through its tables.

    Raises:
        EdgeForgeError: a value without encoding, an encoding without value, an LPBQ weight off its grid of whole
            numbers, or a bias that its grid does not hold.
    """
    graph = model.graph
    if graph.opset_imports.get("", 0) < _MIN_OPSET:
        raise EdgeForgeError(f"QDQ needs opset {_MIN_OPSET}, the graph has {graph.opset_imports.get('')}")
    if flow == "codes":
        assign.coverage(graph, table)
    nodes = list(graph)
    for node in nodes if flow == "codes" else ():
        if node.op_type in roles.BIASED and len(node.inputs) == 3 and node.inputs[2] is not None:
            _bias(graph, node, table)
    for value in [v for v in graph.initializers.values() if str(v.name) in table]:
        _constant(graph, nodes[0], value, table[str(value.name)])
    for value in [v for v in graph.initializers.values() if str(v.name) in (palettes or {})]:
        _looked_up(graph, nodes[0], value, (palettes or {})[str(value.name)])
    for value in [v for v in graph.inputs if str(v.name) in table]:
        _input(graph, nodes[0], value, table[str(value.name)])
    for node in nodes:
        for value in list(node.outputs):
            if str(value.name) in table:
                _activation(graph, node, value, table[str(value.name)])
    _expandable(graph, table)
    return model


def _expandable(graph: ir.Graph, table: Table) -> None:
    """Every LPBQ weight as it was printed: whole-number block scales, the largest of a channel 16."""
    for name, encoding in table.items():
        if encoding.block_scale is None or encoding.channel is None:
            continue
        printed = edit.constant(graph.initializers.get(f"{name}/scale"))
        try:
            if printed is None:
                raise ValueError("its scales are not in the graph")
            if not np.array_equal(expansion(printed, encoding.channel), encoding.block_scale):
                raise ValueError(f"the largest block scale of a channel is not {TOP}")
        except ValueError as error:
            raise EdgeForgeError(f"{name}: {error}", "the compiler would round its scales; fit the grid again "
                                 "after the weight was cut or rescaled") from error


def _parameters(graph: ir.Graph, name: str, encoding: Encoding) -> list[ir.Value]:
    scale = edit.initializer(graph, f"{name}/scale", encoding.steps())
    zero = _codes(graph, f"{name}/zero_point", encoding.zero_point, encoding.dtype)
    return [scale, zero]


def _codes(graph: ir.Graph, name: str, codes: np.ndarray, dtype: str) -> ir.Value:
    if dtype == float8.NAME:
        return edit.initializer(graph, name, float8.stored(codes))
    kind = np.dtype(getattr(ml_dtypes, dtype)) if dtype in ("int4", "uint4") else np.dtype(dtype)
    return edit.initializer(graph, name, codes.astype(kind))


def _attributes(encoding: Encoding) -> list[ir.Attr]:
    if encoding.scale.ndim == 0:
        return []
    if encoding.axis is None:
        raise ValueError("a per-channel encoding has no axis")
    found = [ir.AttrInt64("axis", encoding.axis)]
    return [*found, ir.AttrInt64("block_size", encoding.block)] if encoding.block is not None else found


def _dequantize_before(graph: ir.Graph, anchor: ir.Node, codes: ir.Value, name: str,
                       encoding: Encoding) -> ir.Value:
    inputs = [codes, *_parameters(graph, name, encoding)]
    out = edit.node_before(anchor, "DequantizeLinear", inputs, f"{name}/dq", edit.known_dims(codes),
                           _attributes(encoding))
    out.type = ir.TensorType(ir.DataType.FLOAT)
    return out


def _constant(graph: ir.Graph, first: ir.Node, value: ir.Value, encoding: Encoding) -> None:
    array = edit.constant(value)
    if array is None:
        raise ValueError(f"{value.name} is not a constant")
    name, uses = str(value.name), list(value.uses())
    codes = encoding.quantize(reals(array))
    graph.initializers.pop(name)
    stored = _codes(graph, name, codes, encoding.dtype)
    real = _dequantize_before(graph, first, stored, name, encoding)
    for use in uses:
        use.node.replace_input_with(use.idx, real)


def _looked_up(graph: ir.Graph, first: ir.Node, value: ir.Value, palette: Palette) -> None:
    """name (uint8 codes) -> Cast -> + where its output's table begins -> Gather of all tables' entries -> <name>/dq."""
    name, uses, shape = str(value.name), list(value.uses()), list(palette.codes.shape)
    graph.initializers.pop(name)
    codes = edit.initializer(graph, name, palette.codes)
    begins = np.arange(len(palette.tables), dtype=np.int32).repeat(palette.group) << palette.bits
    tables = edit.initializer(graph, f"{name}/tables", palette.tables.astype(np.float32).reshape(-1))
    begin = edit.initializer(graph, f"{name}/begins", begins.reshape(-1, *[1] * (len(shape) - 1)))
    wide = edit.node_before(first, "Cast", [codes], f"{name}/wide", shape,
                            [ir.AttrInt64("to", int(ir.DataType.INT32))])
    place = edit.node_before(first, "Add", [wide, begin], f"{name}/place", shape)
    real = edit.node_before(first, "Gather", [tables, place], f"{name}/dq", shape)
    wide.type = place.type = ir.TensorType(ir.DataType.INT32)
    real.type = ir.TensorType(ir.DataType.FLOAT)
    for use in uses:
        use.node.replace_input_with(use.idx, real)


def _input(graph: ir.Graph, first: ir.Node, value: ir.Value, encoding: Encoding) -> None:
    uses = list(value.uses())
    value.type = ir.TensorType(_TYPES[encoding.dtype])
    real = _dequantize_before(graph, first, value, str(value.name), encoding)
    for use in uses:
        use.node.replace_input_with(use.idx, real)


def _activation(graph: ir.Graph, node: ir.Node, value: ir.Value, encoding: Encoding) -> None:
    """value = op(...)  ->  value/real -> Quantize -> value (codes) -> Dequantize -> value/dq."""
    name, uses = str(value.name), list(value.uses())
    parameters = _parameters(graph, name, encoding)
    codes = edit.node_after(node, "QuantizeLinear", [value, *parameters], f"{name}/q", edit.known_dims(value))
    codes.type = ir.TensorType(_TYPES[encoding.dtype])
    if value.is_graph_output():
        place = next(i for i, out in enumerate(graph.outputs) if out is value)
        graph.outputs[place] = codes
    value.name, codes.name = f"{name}/real", name
    quantizer = codes.producer()
    if not uses or quantizer is None:
        return
    real = edit.node_after(quantizer, "DequantizeLinear", [codes, *parameters], f"{name}/dq",
                           edit.known_dims(codes))
    real.type = ir.TensorType(ir.DataType.FLOAT)
    for use in uses:
        use.node.replace_input_with(use.idx, real)


def _bias(graph: ir.Graph, node: ir.Node, table: Table) -> None:
    """An int32 bias on its accumulator's grid: input scale x weight scale (LPBQ: the channel's), zero point 0."""
    x, weight, bias = node.inputs
    array = edit.constant(bias)
    if x is None or weight is None or bias is None or array is None:
        raise EdgeForgeError(f"{node.name}: a bias that is not constant cannot be quantized")
    encoding = table[str(weight.name)]
    if encoding.block is not None and encoding.block_scale is None:
        raise EdgeForgeError(f"{weight.name}: blocks with float scales leave its product's bias without a grid",
                             "take one scale a channel for it, or whole-number blocks (LPBQ)")
    scale = (_scale_of(x, table) * encoding.scale).astype(np.float32)
    whole = np.rint(array.astype(np.float64) / scale)
    if np.abs(whole).max(initial=0) > np.iinfo(np.int32).max:
        raise EdgeForgeError(f"{bias.name} does not fit 32 bits on its product's grid",
                             f"{weight.name} needs larger steps (see floors.py)")
    codes = whole.astype(np.int32)
    name, uses = str(bias.name), list(bias.uses())
    graph.initializers.pop(name)
    stored = edit.initializer(graph, name, codes)
    parameters = [edit.initializer(graph, f"{name}/scale", scale),
                  edit.initializer(graph, f"{name}/zero_point", np.zeros(scale.shape, np.int32))]
    axis = [ir.AttrInt64("axis", 0)] if scale.ndim else []
    real = edit.node_before(node, "DequantizeLinear", [stored, *parameters], f"{name}/dq", list(array.shape), axis)
    real.type = ir.TensorType(ir.DataType.FLOAT)
    for use in uses:
        use.node.replace_input_with(use.idx, real)


def _scale_of(value: ir.Value, table: Table) -> np.float32:
    if str(value.name) not in table:
        raise EdgeForgeError(f"{value.name} has no encoding, so the bias of its product has no grid")
    return np.float32(table[str(value.name)].steps())
