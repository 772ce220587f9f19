"""Pieces of a QDQ graph: where it is cut, what each reads and makes, and that a piece computes what the whole does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from edgeforge_runtime.executors.cpu import exact_options
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeforge.bisect import values
from edgeforge.bisect.units import Pieces
from edgeforge.errors import EdgeForgeError, UnsupportedError

TEXT = """
<ir_version: 10, opset_import: ["" : 21]>
branches (uint16[2,4] x) => (uint16[2,4] y, uint16[2,4] z)
<float s = {0.001}, uint16 o = {32768}, float ws = {0.1}, int8 wo = {0},
 int8[4,4] w = {1,2,3,4, 5,6,7,8, -1,-2,-3,-4, 9,8,7,6}>
{
  xf = DequantizeLinear (x, s, o)
  wf = DequantizeLinear (w, ws, wo)
  a0 = MatMul (xf, wf)
  a = QuantizeLinear (a0, s, o)
  af = DequantizeLinear (a, s, o)
  b0 = Relu (af)
  b = QuantizeLinear (b0, s, o)
  bf = DequantizeLinear (b, s, o)
  c0 = MatMul (af, wf)
  c1 = Neg (c0)
  c = QuantizeLinear (c1, s, o)
  cf = DequantizeLinear (c, s, o)
  d0 = Add (bf, cf)
  y = QuantizeLinear (d0, s, o)
  e0 = Tanh (cf)
  z = QuantizeLinear (e0, s, o)
}
"""


@pytest.fixture(scope="module")
def model() -> ir.Model:
    proto = onnx.parser.parse_model(TEXT)
    for node in proto.graph.node:
        node.name = node.output[0]
    return ir.from_proto(proto)


def test_units_end_at_quantize_and_share_dequantize(model: ir.Model) -> None:
    pieces = Pieces(model)
    assert [sorted(u.names) for u in pieces.units] == [
        ["a", "a0"], ["b", "b0"], ["c", "c0", "c1"], ["d0", "y"], ["e0", "z"]]


def test_a_piece_reads_codes_and_makes_codes(model: ir.Model) -> None:
    pieces = Pieces(model)
    assert [v.name for v in pieces.inputs([3])] == ["b", "c"]
    assert [v.name for v in pieces.outputs([0])] == ["a"]
    assert [v.name for v in pieces.outputs([1, 2])] == ["b", "c"]
    assert [v.name for v in pieces.inputs([1, 2])] == ["a"]
    assert [v.name for v in pieces.outputs(range(5))] == ["y", "z"]


def test_named_nodes_lead_to_their_units_also_through_a_weights_dequantize(model: ir.Model) -> None:
    pieces = Pieces(model)
    assert pieces.holding({"c1"}) == [2]
    assert pieces.holding({"wf"}) == [0, 2]
    assert pieces.holding({"elsewhere"}) == []


@given(st.sets(st.integers(0, 4), min_size=1))
@settings(max_examples=31)
def test_every_piece_computes_what_the_whole_does(tmp_path_factory: pytest.TempPathFactory, chosen: set[int]) -> None:
    proto = onnx.parser.parse_model(TEXT)
    whole, work = ir.from_proto(proto), tmp_path_factory.mktemp("piece")
    pieces = Pieces(whole)
    seen = values.compute(whole, pieces.boundaries(), values.feeds_for(whole.graph, None), work)
    piece = pieces.model(chosen)
    values.declare(piece.graph, seen)
    onnx.checker.check_model(ir.to_proto(piece), full_check=True)
    session = ort.InferenceSession(ir.to_proto(piece).SerializeToString(), exact_options())
    names = [o.name for o in session.get_outputs()]
    made = session.run(names, {i.name: seen[i.name] for i in session.get_inputs()})
    for name, array in zip(names, made, strict=True):
        np.testing.assert_array_equal(array, seen[name])


def test_a_float_graph_is_cut_at_every_node() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[2] x) => (float[2] y) { a = Relu (x)  b = Neg (a)  y = Add (a, b) }""")
    assert len(Pieces(ir.from_proto(proto)).units) == 3


FLOAT = """<ir_version: 10, opset_import: ["" : 21]>
g (float[4] x) => (float[2] y) <int64[2] two = {2,2}, float r = {0.0}>
{ a, b = Split (x, two)  dead = Neg (a)  c, omitted = Dropout (a, r)  y = Relu (c) }"""
CODES = """<ir_version: 10, opset_import: ["" : 21]>
g (uint8[4] x) => (uint8[2] y) <int64[2] two = {2,2}, int64[1] k = {2}, float s = {0.1}, uint8 o = {3}>
{ f = DequantizeLinear (x, s, o)  a, b = Split (f, two)  q = QuantizeLinear (a, s, o)  unread = QuantizeLinear (b, s, o)
  g = DequantizeLinear (q, s, o)  h = Neg (g)  n = QuantizeLinear (h, s, o)  m = DequantizeLinear (n, s, o)
  i, j = TopK <axis = 0> (m, k)  y = QuantizeLinear (i, s, o) }"""


@pytest.mark.parametrize("text", [FLOAT, CODES])
def test_outputs_that_nobody_reads_belong_to_no_boundary(text: str, tmp_path: Path) -> None:
    """Half a Split, an omitted optional output, a node that leads nowhere: every piece can still be made and run."""
    whole = _parsed(text)
    pieces = Pieces(whole)
    assert {"dead", "unread"}.isdisjoint(n for u in pieces.units for n in u.names)
    seen = values.compute(whole, pieces.boundaries(), values.feeds_for(whole.graph, None), tmp_path)
    for size in range(1, len(pieces.units) + 1):
        for first in range(len(pieces.units) - size + 1):
            piece = pieces.model(range(first, first + size))
            values.declare(piece.graph, seen)
            session = ort.InferenceSession(ir.to_proto(piece).SerializeToString(), exact_options())
            names = [o.name for o in session.get_outputs()]
            assert names, "a piece without an output computes nothing"
            made = session.run(names, {i.name: seen[i.name] for i in session.get_inputs()})
            for name, array in zip(names, made, strict=True):
                np.testing.assert_array_equal(array, seen[name])


def _parsed(text: str) -> ir.Model:
    """The model; an output that is called omitted is left out, which the text has no way to say."""
    proto = onnx.parser.parse_model(text)
    for node in proto.graph.node:
        for place, output in enumerate(node.output):
            if output == "omitted":
                node.output[place] = ""
        node.name = node.output[0]
    return ir.from_proto(proto)


def test_a_graph_of_constants_is_refused() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g () => (float[1] y) <float[1] w = {1}> { y = Neg (w) }""")
    with pytest.raises(UnsupportedError, match="no node that computes"):
        Pieces(ir.from_proto(proto))


def test_a_loop_is_refused_by_name() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (bool b, float[2] x) => (float[2] y) {
            [choice] y = If (b) <then_branch = t () => (float[2] u) { u = Neg (x) },
                                 else_branch = e () => (float[2] v) { v = Relu (x) }> }""")
    with pytest.raises(UnsupportedError, match=r"choice \(If\) holds a graph of its own"):
        Pieces(ir.from_proto(proto))


def test_feeds_are_checked_and_random_ones_are_the_same_each_time(model: ir.Model) -> None:
    first, second = (values.feeds_for(model.graph, None)["x"] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert (first.dtype, first.shape) == (np.uint16, (2, 4))
    with pytest.raises(EdgeForgeError, match=r"input x is uint16\[2, 4\], and the feeds hold nothing"):
        values.feeds_for(model.graph, {})
    with pytest.raises(EdgeForgeError, match=r"the feeds hold uint8\[2, 4\]"):
        values.feeds_for(model.graph, {"x": np.zeros((2, 4), np.uint8)})


def test_an_open_dimension_is_named() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[tokens] x) => (float[tokens] y) { y = Neg (x) }""")
    with pytest.raises(EdgeForgeError, match=r"input x has dimensions without a size \(\[tokens\]\)"):
        values.feeds_for(ir.from_proto(proto).graph, None)


def test_a_model_that_the_cpu_refuses_is_said_so(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
        g (float[2] x) => (float[2] y) { y = own.Unknown (x) }""")
    whole = ir.from_proto(proto)
    with pytest.raises(EdgeForgeError, match="does not run on the CPU either"):
        values.compute(whole, Pieces(whole).boundaries(), {"x": np.zeros(2, np.float32)}, tmp_path)
