"""A plain graph through the HTP compiler: one binary, which the device and the x86 emulator both load."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from edgeforge_runtime.manifest import Part, Target
from edgeforge_runtime.plain import PlainManifest, one_graph

from edgeforge.backends import process
from edgeforge.backends.qnn.blocks import blocks_read_back
from edgeforge.backends.qnn.chips import snapdragon
from edgeforge.backends.qnn.compiler import CompiledPart, compile_part, load_part
from edgeforge.backends.qnn.emulator import emulate_loaded_or_anew
from edgeforge.backends.qnn.job import EXECUTOR, GraphJob, PartJob
from edgeforge.backends.qnn.limits import may_crash
from edgeforge.backends.qnn.placement import check_placement
from edgeforge.build import Build
from edgeforge.encodings import FILE, Table
from edgeforge.export import record
from edgeforge.gates import Check
from edgeforge.metrics import sqnr_db

_FOLDER = "device"


def compile_graph(build: Build, quantized: Path, vectors: Path, out: Path) -> list[Check]:
    """See Backend.compile_graph."""
    name = PlainManifest.load(quantized).part("cpu").graph
    calls = sorted(p for p in vectors.iterdir() if p.is_dir())
    build.say("HTP compiler")
    source = PlainManifest.load(quantized).part("cpu")
    chip = snapdragon(build.chip)
    job = PartJob(name, (GraphJob(name, quantized / source.file, calls[0] / record.INPUTS),), chip.soc_model,
                  out / _FOLDER, False, chip.vtcm_mb, dsp_arch=chip.dsp_arch,
                  failed=build.failures / name)
    part = compile_part(job, build.recipe.compile.timeout_s, process.allowance(build.recipe.compile.memory_mb))
    table = Table.load(quantized / FILE)
    return [*_placed(part, quantized / source.file, table), *_numbers(build, part, table, calls)]


def bundle_graph(source: Part, compiled: Path, bundle: Path) -> dict[str, Target]:
    """See Backend.bundle_graph."""
    part = load_part(compiled / _FOLDER)
    (bundle / _FOLDER).mkdir()
    wrapper = part.graphs[0].wrapper
    for file in (part.binary, wrapper):
        shutil.copyfile(file, bundle / _FOLDER / file.name)
    inside = Part(f"{_FOLDER}/{wrapper.name}", source.graph, source.inputs, source.outputs)
    return {"htp": one_graph(EXECUTOR, inside, {"soc_model": str(part.info.soc_model)})}


def _placed(part: CompiledPart, model: Path, table: Table) -> Iterator[Check]:
    graph, info = part.graphs[0], part.info
    placement = check_placement(graph.name, graph.dump, graph.trace)
    note = "; ".join(f"{f.op} ({f.onnx or f.op_type}): {f.why}" for f in placement.findings[:3])
    yield Check(f"compile: {graph.name} off the accelerator", len(placement.findings), "ops", 0, "at most", note)
    yield from blocks_read_back(placement, model, table)
    yield Check(f"compile: {graph.name} device binary", info.file_bytes / 2**20, "MiB",
                note=f"soc {info.soc_model}, v{info.dsp_arch}, QAIRT {info.build_id}")
    yield Check(f"compile: {graph.name} compiler", part.compile_seconds, "s",
                note=f"peak {part.peak_rss_bytes / 2**30:.2f} GiB")


def _numbers(build: Build, part: CompiledPart, table: Table, calls: list[Path]) -> Iterator[Check]:
    """The binary, loaded again, on the emulator against onnxruntime's CPU: the same codes in, output by output."""
    build.say(f"{len(calls)} samples on the emulator")
    graph = part.graphs[0]
    expected = [record.load_arrays(call / record.OUTPUTS) for call in calls]
    feeds = [record.load_arrays(call / record.INPUTS) for call in calls]
    limits = build.recipe.compile
    made, anew = emulate_loaded_or_anew(part, graph.name, feeds, limits.timeout_s, process.allowance(limits.memory_mb),
                                        may_crash(table))
    for name in expected[0]:
        reals = [np.stack([_real(table, name, one[name]) for one in side]) for side in (expected, made)]
        yield Check(f"compile: {name}, emulator against CPU", sqnr_db(*reals), "dB", note=anew, gate="emulator_db")
    yield Check("compile: emulator, a sample", part.run_seconds, "s", note="on this machine's CPU, never a device time")


def _real(table: Table, name: str, codes: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    encoding = table.get(name)
    return codes.astype(np.float32) if encoding is None else encoding.dequantize(codes)
