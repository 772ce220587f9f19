"""The verdict over QNN graphs: three vices that compile without a word, and the virtue."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
import qnn_small_graphs as small
from qnn_fixtures import Built, Compiler

from edgeforge.backends.qnn.compiler import CompiledPart
from edgeforge.backends.qnn.placement import Kind, Placement, check_placement
from edgeforge.errors import CompilerError


def placement(part: CompiledPart) -> Placement:
    (graph,) = part.graphs
    return check_placement(graph.name, graph.dump, graph.trace)


def test_float_island_is_found_and_mapped_to_its_nodes(compiler: Compiler) -> None:
    found = placement(compiler("part", small.island()))
    assert not found.ok
    islands = [f for f in found.findings if f.kind is Kind.FLOAT_ISLAND]
    assert {f.op_type for f in islands} == {"Dequantize", "Quantize"}
    (tensor,) = (f for f in found.findings if f.kind is Kind.FLOAT_TENSOR)
    assert (tensor.op_type, tensor.onnx) == ("ElementWiseAdd", "sum/Add")
    assert "float32" in tensor.why


def test_matmul_operand_that_is_rounded_unasked_is_found(compiler: Compiler) -> None:
    (found,) = placement(compiler("part", small.matmul_u16())).findings
    assert (found.kind, found.op_type, found.onnx) == (Kind.NARROWED, "Convert", "product/MatMul")
    assert "b goes from uint16 to uint8" in found.why


def test_rounding_that_the_graph_asks_for_is_fine(compiler: Compiler) -> None:
    found = placement(compiler("part", small.matmul_u8()))
    assert found.ok
    assert found.ops == {"Convert": 1, "MatMul": 1}
    assert found.idle_converts == ()


def test_tiny_model_is_wholly_in_integers(built: Built) -> None:
    for part in (*built.device, *built.twin):
        for graph in part.graphs:
            found = check_placement(graph.name, graph.dump, graph.trace)
            assert found.ok, found.findings
    layers = built.device[1].graphs[0]
    ops = check_placement(layers.name, layers.dump, layers.trace).ops
    convolutions = sum(n.op_type == "Conv" for n in onnx.load(built.onnx[layers.name]).graph.node)
    assert ops["Conv2d"] == convolutions
    assert ops["Transpose"] == 2 * built.model.layers  # K's; those around convolutions are gone


def test_converts_that_change_nothing_are_listed(built: Built, compiler: Compiler) -> None:
    found = placement(compiler("part", small.two_readers()))
    assert found.ok
    assert found.ops["Convert"] == len(found.idle_converts) == 1
    layers = built.device[1].graphs[0]
    tiny = check_placement(layers.name, layers.dump, layers.trace)
    cache_writes = 2 * built.model.kv_heads * built.model.layers  # u16 -> u8: these do something
    assert tiny.ops["Convert"] - len(tiny.idle_converts) == cache_writes


def test_nodes_left_outside_are_findings(compiler: Compiler, tmp_path: Path) -> None:
    (graph,) = compiler("part", small.matmul_u8()).graphs
    story = json.loads(graph.trace.read_text())
    story["unsupported_nodes"] = [{"name": "det", "type": "Det"}]
    story["subgraph_traces"] *= 2
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps(story))
    found = check_placement(graph.name, graph.dump, edited).findings
    assert [f.kind for f in found] == [Kind.OUTSIDE, Kind.OUTSIDE]
    assert (found[0].onnx, found[0].op_type) == ("det", "Det")
    assert "2 QNN graphs" in found[1].why


def test_unreadable_files_are_named(compiler: Compiler, tmp_path: Path) -> None:
    (graph,) = compiler("part", small.conv(1)).graphs
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    with pytest.raises(CompilerError, match=r"broken\.json"):
        check_placement("g", broken, graph.trace)
    with pytest.raises(CompilerError, match=r"gone\.json"):
        check_placement("g", graph.dump, tmp_path / "gone.json")
