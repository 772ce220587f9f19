"""Reading binaries back: encodings, sizes whose meaning the cases show, and damaged files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import qnn_small_graphs as small
from onnx import numpy_helper
from qnn_fixtures import Built, Compiler
from qnn_tiny_llama import grid

from edgeforge.backends.qnn.binary import GraphInfo, read_binaries, read_binary
from edgeforge.errors import CompilerError

KIB = 1024
BUFFER = 8 * KIB  # every input and output gets whole blocks of this size
BYTES = {"int32": 4, "uint16": 2, "uint8": 1}


def buffers(graph: GraphInfo) -> int:
    sizes = [int(np.prod(t.dims)) * BYTES[t.dtype] for t in (*graph.inputs, *graph.outputs)]
    return sum(-(-size // BUFFER) * BUFFER for size in sizes)


def test_inputs_and_outputs_are_those_of_the_onnx(built: Built) -> None:
    for part in built.device:
        for graph in part.info.graphs:
            model = onnx.load(built.onnx[graph.name]).graph
            for theirs, ours in ((model.input, graph.inputs), (model.output, graph.outputs)):
                assert {t.name: tuple(d.dim_value for d in t.type.tensor_type.shape.dim) for t in theirs} == {
                    t.name: t.dims for t in ours
                }


def test_encodings_are_exact(built: Built) -> None:
    graph = built.device[1].info.graph("prompt_ar32_cl256_2_of_3")
    mask = next(t for t in graph.inputs if t.name == "attention_mask")
    assert (mask.dtype, mask.zero_point) == ("uint16", 65535)
    scale, zero = grid(*built.ranges["past_key_1"], 8)
    for name, side in (("past_key_1_in", graph.inputs), ("past_key_1_out", graph.outputs)):
        tensor = next(t for t in side if t.name == name)
        assert (tensor.dtype, tensor.scale, tensor.zero_point) == ("uint8", float(scale), zero)
    ids = built.device[0].info.graphs[0].inputs[0]
    assert (ids.dtype, ids.scale) == ("int32", None)


def test_versions_and_settings(compiler: Compiler) -> None:
    info = compiler("part", small.conv(4), vtcm_mb=2, optimization=1).info
    assert info.build_id.startswith("v2.51.0")
    assert info.core_api == (2, 40, 0)
    assert info.file_bytes == info.path.stat().st_size
    (graph,) = info.graphs
    assert (graph.vtcm_bytes, graph.optimization, graph.spill_fill_bytes) == (2 * KIB * KIB, 1, 0)


def test_io_bytes_are_the_buffers_of_inputs_and_outputs(built: Built, compiler: Compiler) -> None:
    graphs = [g for p in (*built.device, *built.twin) for g in p.info.graphs]
    graphs += compiler("part", small.conv(1000)).info.graphs
    for graph in graphs:
        assert graph.io_bytes == buffers(graph), graph.name


def test_const_bytes_follow_the_weights_and_op_bytes_do_not(compiler: Compiler) -> None:
    narrow, wide = (compiler(f"c{n}", small.conv(32, n)).info.graphs[0] for n in (64, 512))
    assert 0 <= narrow.const_bytes - 64 * 64 <= 24 * KIB
    assert 0 <= wide.const_bytes - 512 * 512 <= 24 * KIB
    assert narrow.shared_bytes == wide.shared_bytes == 0
    assert abs(wide.op_bytes - narrow.op_bytes) < 4 * KIB


def test_shared_bytes_hold_equal_weights_only(compiler: Compiler) -> None:
    weights = 512 * 512
    equal = compiler("equal", small.conv(32, 512), small.conv(1, 512), sharing=True).info
    for graph in equal.graphs:
        assert graph.shared_bytes >= weights
        assert graph.const_bytes < weights / 10
    different = compiler("different", small.conv(32, 512), small.conv(1, 512, seed=1), sharing=True).info
    for graph in different.graphs:
        assert graph.shared_bytes < weights / 10
        assert graph.const_bytes >= weights
    twin = compiler("twin", small.conv(32, 512), small.conv(1, 512)).info
    assert all(g.shared_bytes == 0 and g.const_bytes >= weights for g in twin.graphs)
    assert equal.file_bytes < 0.65 * twin.file_bytes


def test_many_binaries_in_one_child_and_lookup_by_name(built: Built) -> None:
    paths = [p.binary for p in (*built.device, *built.twin)]
    infos = read_binaries(paths)
    assert [i.path for i in infos] == paths
    with pytest.raises(KeyError, match="has no graph 'x'"):
        infos[0].graph("x")


@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty", "half header", "missing"])
def test_damaged_files_are_named(built: Built, tmp_path: Path, damage: str) -> None:
    whole, path = built.twin[1].binary.read_bytes(), tmp_path / f"{damage}.bin"
    contents = {
        "truncated": whole[: len(whole) // 2],
        "garbage": bytes(range(256)) * 64,
        "empty": b"",
        "half header": whole[:100],
    }
    if damage in contents:
        path.write_bytes(contents[damage])
    with pytest.raises(CompilerError, match=damage):
        read_binary(path)


def test_weights_of_the_fixture_are_equal_in_both_widths(built: Built) -> None:
    wide, one = (onnx.load(built.onnx[f"{n}_cl256_2_of_3"]) for n in ("prompt_ar32", "token_ar1"))
    ours, theirs = ({i.name: numpy_helper.to_array(i) for i in m.graph.initializer} for m in (wide, one))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[n], theirs[n]) for n in ours)
