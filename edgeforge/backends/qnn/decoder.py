"""A decoder's parts through the HTP compiler: as device binary and x86 twin, both checked, and into a bundle."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
from edgeforge_runtime.executors.base import Arrays
from edgeforge_runtime.manifest import Graph, Manifest, Part, Target
from edgeforge_runtime.text import TextCodec

from edgeforge import artifact
from edgeforge.backends import process
from edgeforge.backends.ending import ChildFailed
from edgeforge.backends.qnn import genie
from edgeforge.backends.qnn.blocks import blocks_read_back
from edgeforge.backends.qnn.chips import snapdragon
from edgeforge.backends.qnn.compiler import CompiledPart, compile_part, load_part
from edgeforge.backends.qnn.contract import contract_breaches
from edgeforge.backends.qnn.emulator import emulate_loaded_or_anew
from edgeforge.backends.qnn.job import EXECUTOR, GraphJob, PartJob
from edgeforge.backends.qnn.limits import may_crash
from edgeforge.backends.qnn.placement import check_placement
from edgeforge.backends.qnn.twins import compare_twins
from edgeforge.build import Build
from edgeforge.encodings import FILE, Table
from edgeforge.export import record
from edgeforge.gates import Check
from edgeforge.metrics import sqnr_db

DEVICE, TWIN = "device", "x86"
_VECTORS = "vectors"
_EMULATED_STEPS = 3


def compile_parts(build: Build, split: Path, out: Path) -> list[Check]:
    """See Backend.compile."""
    graphs = Manifest.load(split).targets["cpu"].graphs
    device, twin = [], []
    count = len(graphs[0].parts)
    for index in range(count):
        build.say(f"part {index + 1} of {count}: HTP compiler, device binary and x86 twin")
        name = f"part_{index + 1:0{len(str(count))}}_of_{count}"
        pair = _part(build, split, out, [g.parts[index] for g in graphs], name)
        device.append(pair[0])
        twin.append(pair[1])
    models = {p.graph: split / p.file for g in graphs for p in g.parts}
    table = Table.load(split / FILE)
    checks = [c for pair in zip(device, twin, strict=True) for c in _structure(build, *pair, models, table)]
    breaches = contract_breaches([p.info for p in twin])
    checks.append(Check("compile: graph contract", len(breaches), "breaches", 0, "at most",
                        "; ".join(f"{b.where}: {b.rule}" for b in breaches[:3])))
    return checks + list(_numbers(build, split, graphs, device, twin, table))


def _part(build: Build, split: Path, out: Path, parts: Sequence[Part], name: str) -> list[CompiledPart]:
    jobs = tuple(GraphJob(p.graph, split / p.file, split / _VECTORS / label / p.graph / record.INPUTS)
                 for p, label in zip(parts, _labels(split), strict=True))
    chip = snapdragon(build.chip)
    kinds = [(DEVICE, True), (TWIN, False)] if chip.weight_sharing else [(DEVICE, False), (TWIN, False)]
    work = [PartJob(name, jobs, chip.soc_model, out / kind / name, sharing, chip.vtcm_mb, dsp_arch=chip.dsp_arch,
                    failed=build.failures / f"{name}_{kind}")
            for kind, sharing in kinds]
    for job in work:
        job.out.parent.mkdir(exist_ok=True)
    return _compile_pair(build, work, name)


def bundle_parts(build: Build, compiled: Path, split: Path, bundle: Path) -> dict[str, Target]:
    """See Backend.bundle."""
    manifest = Manifest.load(split)
    graphs = manifest.targets["cpu"].graphs
    for kind in (DEVICE, TWIN):
        folder = bundle / kind
        folder.mkdir()
        parts = [load_part(p) for p in sorted((compiled / kind).iterdir())]
        for part in parts:
            shutil.copyfile(part.binary, folder / part.binary.name)
            if kind == TWIN:
                for graph in part.graphs:
                    shutil.copyfile(graph.wrapper, folder / graph.wrapper.name)
        shutil.copyfile(bundle / artifact.TOKENIZER / genie.TOKENIZER, folder / genie.TOKENIZER)
        genie.write_genie_files(folder, _genie_spec(build, manifest, split, [p.binary.name for p in parts]))
    soc = str(snapdragon(build.chip).soc_model)
    return {"htp": Target(EXECUTOR, tuple(_emulated(g) for g in graphs), {"soc_model": soc})}


def _compile_pair(build: Build, work: Sequence[PartJob], name: str) -> list[CompiledPart]:
    """Both at once; one after the other when the memory that is free is not enough for that."""
    try:
        return _compile(build, work, len(work))
    except ChildFailed as error:
        if error.ending.kind != "memory" or build.recipe.compile.memory_mb is not None:
            raise
    build.say(f"{name}: too little memory for both compilers at once; one after the other")
    return _compile(build, work, 1)


def _compile(build: Build, work: Sequence[PartJob], at_once: int) -> list[CompiledPart]:
    limits = build.recipe.compile
    memory, group = process.allowance(limits.memory_mb, at_once), process.Group()
    with ThreadPoolExecutor(at_once) as pool:
        running = [pool.submit(compile_part, job, limits.timeout_s, memory, group) for job in work]
        try:
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            for finished in done:
                finished.result()
            return [r.result() for r in running]
        except BaseException:
            for waiting in running:
                waiting.cancel()
            group.stop()  # the other compiler would go on for minutes
            raise


def _labels(split: Path) -> list[str]:
    """The recorded calls that the compiling process runs: one a width, widest first."""
    return record.one_a_width(p.name for p in (split / _VECTORS).iterdir())


def _structure(build: Build, device: CompiledPart, twin: CompiledPart, models: Mapping[str, Path],
               table: Table) -> Iterator[Check]:
    """Placement on the accelerator, blocks kept, device and twin the same, weights stored once."""
    placements = []
    for part in (device, twin):
        placements.append({g.name: check_placement(g.name, g.dump, g.trace) for g in part.graphs})
    for graph, placement in placements[0].items():
        note = "; ".join(f"{f.op} ({f.onnx or f.op_type}): {f.why}" for f in placement.findings[:3])
        yield Check(f"compile: {graph} off the accelerator", len(placement.findings), "ops", 0, "at most", note)
        yield from blocks_read_back(placement, models[graph], table)
    names = tuple(g.name for g in device.graphs)
    report = compare_twins(device.info, twin.info, names, *placements)
    note = "; ".join(f"{d.where} {d.what}: {d.device} / {d.twin}" for d in report.differences[:3])
    yield Check(f"compile: {device.name} device against twin", len(report.differences), "differences", 0, "at most",
                note)
    yield Check(f"compile: {device.name} device binary", device.info.file_bytes / 2**20, "MiB",
                note=f"soc {device.info.soc_model}, v{device.info.dsp_arch}, QAIRT {device.info.build_id}")
    yield Check(f"compile: {device.name} compiler", device.compile_seconds, "s",
                note=f"peak {device.peak_rss_bytes / 2**30:.2f} GiB")
    if report.sharing is None and snapdragon(build.chip).weight_sharing:
        yield Check(f"compile: {device.name} weights, both graphs over the larger one", math.inf, "x",
                    sense="at most", note="no shared weights were read back", gate="shared_bytes")
    if report.sharing is not None:
        yield Check(f"compile: {device.name} weights, both graphs over the larger one", report.sharing.ratio, "x",
                    sense="at most", gate="shared_bytes",
                    note=f"{report.sharing.device_weights:,} of {report.sharing.all_graphs:,} bytes unshared")


def _numbers(build: Build, split: Path, graphs: Sequence[Graph], device: Sequence[CompiledPart],
             twin: Sequence[CompiledPart], table: Table) -> Iterator[Check]:
    """Compiled graphs against onnxruntime's CPU on the same codes."""
    for part, other in zip(device, twin, strict=True):
        for mine, same in zip(part.graphs, other.graphs, strict=True):
            if mine.outputs is not None and same.outputs is not None:
                a, b = record.load_arrays(mine.outputs), record.load_arrays(same.outputs)
                apart = max(int(np.abs(a[k].astype(np.int64) - b[k]).max()) for k in a)
                yield Check(f"compile: {mine.name} device against twin, run", apart, "LSB", 0, "at most",
                            "both run in the processes that generated them")
    for part in twin:
        for label, compiled in zip(_labels(split), part.graphs, strict=True):
            if compiled.outputs is not None:
                yield _against_cpu(table, split / _VECTORS / label / compiled.name, compiled.outputs)
    yield from _decode(build, split, graphs[-1], twin, table)


def _against_cpu(table: Table, vectors: Path, outputs: Path) -> Check:
    """One recorded call of one graph, as the process that compiled it ran it."""
    expected = record.load_arrays(vectors / record.OUTPUTS)
    deep = any(name.startswith("past_") for name in expected)
    return Check(f"compile: {vectors.name} emulator against CPU",
                 _worst(table, expected, record.load_arrays(outputs)), "dB",
                 gate="wide_db" if deep else "emulator_db")


def _decode(build: Build, split: Path, graph: Graph, twin: Sequence[CompiledPart], table: Table) -> Iterator[Check]:
    """A few decode steps through all parts on the emulator, each part fed by the one before."""
    labels = sorted(p.name for p in (split / _VECTORS).iterdir() if p.name.startswith("ar1_"))[:_EMULATED_STEPS]
    build.say(f"{len(labels)} decode steps on the emulator (slow: seconds to minutes)")
    begun, limits = time.perf_counter(), build.recipe.compile
    memory = process.allowance(limits.memory_mb)
    values: list[Arrays] = [{} for _ in labels]
    expected: list[Arrays] = [{} for _ in labels]
    notes: list[str] = []
    for part, spec in zip(twin, graph.parts, strict=True):
        feeds = []
        for step, label in enumerate(labels):
            folder = split / _VECTORS / label / spec.graph
            values[step] = record.load_arrays(folder / record.INPUTS) | values[step]
            expected[step] |= record.load_arrays(folder / record.OUTPUTS)
            feeds.append({t.name: values[step][t.name] for t in spec.inputs})
        outputs, note = emulate_loaded_or_anew(part, spec.graph, feeds, limits.timeout_s, memory, may_crash(table))
        notes += [note] if note else []
        for step, made in enumerate(outputs):
            values[step] |= made
    reals = [[table["logits"].dequantize(side[step]["logits"]) for step in range(len(labels))]
             for side in (expected, values)]
    for step, label in enumerate(labels):
        apart = sqnr_db(reals[0][step], reals[1][step])
        yield Check(f"compile: decode call {label}, emulator against CPU", apart, "dB")
    yield Check("compile: decode steps through all parts, emulator against CPU",
                sqnr_db(np.stack(reals[0]), np.stack(reals[1])), "dB",
                note="; ".join(notes), gate="emulator_db")
    step_s = (time.perf_counter() - begun) / len(labels)
    both_s = sum(p.run_seconds for p in twin)
    if not notes:
        yield Check("compile: emulator, a decode step", step_s, "s", note="on this machine's CPU, never a device time")
    yield Check("compile: emulator, a prompt chunk and a decode step", both_s, "s", note="likewise")


def _worst(table: Table, expected: Arrays, made: Arrays) -> float:
    return min(sqnr_db(table[k].dequantize(v), table[k].dequantize(made[k])) for k, v in expected.items())


def _emulated(graph: Graph) -> Graph:
    parts = tuple(Part(f"{TWIN}/{p.graph}.onnx", p.graph, p.inputs, p.outputs) for p in graph.parts)
    return Graph(graph.ar, graph.cl, parts)


def _genie_spec(build: Build, manifest: Manifest, split: Path, binaries: list[str]) -> genie.GenieSpec:
    decoder, config = artifact.load_decoder(split), build.checkpoint.config
    (rope, *swa), chip = genie.rope_parameters(config), snapdragon(build.chip)
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    return genie.GenieSpec(
        context=build.context, vocab=decoder.vocab, eos=manifest.model.eos, head_dim=decoder.head_dim,
        rope_dim=decoder.rotary // 2, rope_theta=float(theta), ctx_bins=tuple(binaries),
        soc_model=chip.soc_model, dsp_arch=chip.dsp_arch, pad=manifest.model.pad,
        bos=genie.prepended(TextCodec(split / artifact.TOKENIZER), manifest.model.bos),
        rope_scaling=rope or None, swa_rope=swa[0] if swa else None)
