"""Weights in 4-bit blocks: kept as whole-number expansions, counted as such, and what the emulator cannot load."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import qnn_small_graphs as small
from qnn_fixtures import TIMEOUT_S, Compiler
from qnn_tiny_llama import cpu_session

from edgeforge.backends.qnn import limits
from edgeforge.backends.qnn.blocks import blocks_read_back
from edgeforge.backends.qnn.compiler import CompiledPart, compile_part
from edgeforge.backends.qnn.emulator import EmulatorCrashed, emulate, emulate_loaded_or_anew
from edgeforge.backends.qnn.placement import Kind, Placement, check_placement
from edgeforge.encodings import Encoding, Table
from edgeforge.gates import Check


def _compiled(compiler: Compiler, model: object) -> tuple[CompiledPart, dict[str, np.ndarray], np.ndarray]:
    """The part, compiled and run at once; its feeds, and the CPU's answer to them."""
    job = compiler.job("part", model)  # type: ignore[arg-type]
    graph = job.graphs[0]
    shape = cpu_session(graph.onnx).get_inputs()[0].shape
    feeds = {"x": np.random.default_rng(1).integers(20000, 45000, shape).astype(np.uint16)}
    path = graph.onnx.with_suffix(".npz")
    np.savez(path, **feeds)
    part = compile_part(dataclasses.replace(job, graphs=(dataclasses.replace(graph, feeds=path),)), TIMEOUT_S)
    return part, feeds, np.asarray(cpu_session(graph.onnx).run(None, feeds)[0]).astype(int)


def _in_process(part: CompiledPart) -> np.ndarray:
    path = part.graphs[0].outputs
    assert path is not None
    with np.load(path) as archive:
        return np.asarray(archive["y"]).astype(int)


def _placed(part: CompiledPart) -> Placement:
    graph = part.graphs[0]
    return check_placement(graph.name, graph.dump, graph.trace)


def _read_back(part: CompiledPart, model: Path, block: int) -> list[Check]:
    one = np.ones((1, 1), np.int64)
    weight = Encoding(4, True, np.ones(1, np.float32), one - 1, 1, block, one, 0)
    return list(blocks_read_back(_placed(part), model, Table({"w": weight, "elsewhere": weight})))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("block", [16, 32, 64])
def test_blocks_stay_blocks_to_one_code(block: int, bias: bool, compiler: Compiler) -> None:
    part, feeds, expected = _compiled(compiler, small.conv_in_blocks(block, 64, 128, bias=bias))
    assert _placed(part).ok
    assert _placed(part).ops == {"Conv2d": 1}
    (check,) = _read_back(part, compiler.folder / "part0.onnx", block)
    assert check.passed
    assert (check.value, check.threshold) == (1, 1)
    loaded = emulate(part, "part0", [feeds], TIMEOUT_S)[0]["y"].astype(int)
    assert np.ptp(expected) > 1000
    assert np.abs(_in_process(part) - expected).max() <= 1
    assert np.abs(loaded - expected).max() <= 1


def test_blocks_that_became_floats_are_named(compiler: Compiler) -> None:
    """8-bit codes in blocks: the provider compiles them, in float."""
    part, _, _ = _compiled(compiler, small.conv_in_blocks(64, 64, 128, np.int8))
    (blocks,) = (f for f in _placed(part).findings if f.kind is Kind.FLOAT_BLOCKS)
    assert blocks.op_type == "Conv2d"
    assert blocks.onnx.startswith("conv/Conv")
    assert blocks.why.startswith("w has blocks with float scales")
    (check,) = _read_back(part, compiler.folder / "part0.onnx", 64)
    assert not check.passed
    assert (check.value, check.note) == (0, "w")


def test_a_graph_without_blocks_says_nothing(compiler: Compiler) -> None:
    part = compiler("part", small.conv(8))
    assert list(blocks_read_back(_placed(part), compiler.folder / "part0.onnx", Table())) == []
    assert not limits.may_crash(Table())


def test_the_emulator_still_crashes_on_some_loaded_blocks_of_64(compiler: Compiler) -> None:
    """When a later wheel passes here, limits.CRASHING can go. The compiling process is right all the while."""
    part, feeds, expected = _compiled(compiler, small.conv_in_blocks(64, 64, 576))
    assert np.abs(_in_process(part) - expected).max() <= 1
    with pytest.raises(EmulatorCrashed) as caught:
        emulate(part, "part0", [feeds], TIMEOUT_S)
    assert caught.value.message == "part part, graph part0: the HTP emulator was killed by SIGSEGV"
    (outputs,), note = emulate_loaded_or_anew(part, "part0", [feeds], TIMEOUT_S, None, may_crash=True)
    assert np.abs(outputs["y"].astype(int) - expected).max() <= 1
    assert note == f"part ran in a process that compiled it anew: {caught.value.message}"
