"""split: heads apart (SHA), the graph in parts, each at its compiled widths: static QDQ ONNX and its vectors."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from edgeforge_runtime.executors import open_executor
from edgeforge_runtime.executors.base import Arrays, Executor
from edgeforge_runtime.executors.cpu import exact_options
from edgeforge_runtime.manifest import IDS, Graph, Manifest, Part, Target, Tensor

from edgeforge import artifact
from edgeforge.build import Build
from edgeforge.encodings import FILE, Table
from edgeforge.errors import EdgeForgeError
from edgeforge.export import record
from edgeforge.gates import Check
from edgeforge.graph import bind, edit, sha, split, store
from edgeforge.metrics import sqnr_db
from edgeforge.quantize import qdq
from edgeforge.stages import export, heads

PARTS, VECTORS = "parts", "vectors"


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes parts/<graph>/model.onnx, vectors/<call>/<graph>/, table.json, and a manifest over the parts."""
    source = sources["transform"]
    model = store.load(sources["quantize"] / artifact.FLOAT)
    table = Table.load(sources["quantize"] / FILE)
    calls = load_calls(sources["export"] / export.VECTORS)
    checks: list[Check] = []
    if build.profile.split_heads:
        build.say("one attention a head")
        whole_table, table = table, sha.split_heads(model, table)
        feeds = {label: _reals(call.inputs, whole_table) for label, call in calls.items()}
        checks += _sha_gate(build, sources["quantize"] / artifact.FLOAT, model, feeds)
    decoder, judged = artifact.load_decoder(source), calls
    if build.profile.split_heads and decoder.kv_heads == 1:
        judged = calls | heads.answers(model, table, calls, build.context, build.threads)
    table.save(out / FILE)
    plan = split.plan(model.graph, split.stored(model.graph, table), build.recipe.split.part_bytes)
    build.say(f"{len(plan.bytes)} parts")
    graphs = _write_parts(build, split.extract(model, plan.cuts, decoder.output_names()), table, out)
    artifact.carry(source, out)
    manifest = dataclasses.replace(Manifest.load(source), targets={"cpu": Target("onnx-cpu", graphs)})
    manifest.save(out)
    checks += [Check(f"split: part {i} of {len(plan.bytes)}", size / 2**20, "MiB of weights")
               for i, size in enumerate(plan.bytes, 1)]
    return checks + _vectors(build, manifest, out, judged, table)


def graph_name(ar: int, cl: int, part: int, parts: int) -> str:
    """Genie's names; zero-padded, because it sorts them as text."""
    width = len(str(parts))
    return f"{'token' if ar == 1 else 'prompt'}_ar{ar}_cl{cl}_{part:0{width}}_of_{parts:0{width}}"


def load_calls(folder: Path) -> dict[str, record.Call]:
    """The recorded calls by label (ar128, ar1_0, ar1_1, ...)."""
    found = sorted(p for p in folder.iterdir() if p.is_dir())
    return {p.name: record.load(p, int(p.name.removeprefix("ar").split("_")[0])) for p in found}


def _reals(arrays: Arrays, table: Table) -> Arrays:
    return {k: v if k == IDS else table[k].dequantize(v) for k, v in arrays.items()}


def _sha_gate(build: Build, whole: Path, heads: ir.Model, feeds: Mapping[str, Arrays]) -> list[Check]:
    """The float graph before and after, on a real prefill call and a real decode call."""
    checks = []
    with tempfile.TemporaryDirectory() as scratch:
        paths = whole / store.MODEL, store.save(heads, Path(scratch))
        options = exact_options()
        options.intra_op_num_threads = build.threads
        before, after = (ort.InferenceSession(str(p), options, providers=["CPUExecutionProvider"]) for p in paths)
        for label in record.one_a_width(feeds):
            expected, made = before.run(None, feeds[label]), after.run(None, feeds[label])
            worst = min(sqnr_db(a, b) for a, b in zip(expected, made, strict=True))
            checks.append(Check(f"split: SHA against MHA, {label}", worst, "dB", gate="sha_db"))
    return checks


def _write_parts(build: Build, parts: Sequence[ir.Model], table: Table, out: Path) -> tuple[Graph, ...]:
    """Prints each part as QDQ once and binds it to every width; returns the graphs, widest first."""
    made: dict[int, list[Part]] = {ar: [] for ar in build.widths}
    everywhere = set().union(*(edit.names(part.graph) for part in parts))
    if lost := sorted(set(table) - everywhere):
        raise EdgeForgeError(f"{len(lost)} encodings lost their values in the split: {lost[:3]}", "please report it")
    for number, part in enumerate(parts, 1):
        names = edit.names(part.graph)
        printed = qdq.quantize(part, Table({n: e for n, e in table.items() if n in names}))
        for ar in build.widths:
            name = graph_name(ar, build.context, number, len(parts))
            bound = bind.bind(printed.clone(), ar, build.context)
            bound.graph.name = name
            folder = out / PARTS / name
            folder.mkdir(parents=True)
            store.save(bound, folder)
            made[ar].append(Part(f"{PARTS}/{name}/{store.MODEL}", name, _tensors(bound.graph.inputs, table),
                                 _tensors(bound.graph.outputs, table)))
    return tuple(Graph(ar, build.context, tuple(made[ar])) for ar in build.widths)


def _tensors(values: Sequence[ir.Value], table: Table) -> tuple[Tensor, ...]:
    found = []
    for value in values:
        name, shape = str(value.name), tuple(d for d in edit.known_dims(value) if isinstance(d, int))
        encoding = table.get(name)
        if encoding is None:
            found.append(Tensor(name, "int32", shape))
        else:
            found.append(Tensor(name, encoding.dtype, shape, float(encoding.scale), int(encoding.zero_point)))
    return tuple(found)


def _vectors(build: Build, manifest: Manifest, out: Path, calls: Mapping[str, record.Call],
             table: Table) -> list[Check]:
    """Runs every call through the parts, keeps each part's inputs and outputs, and compares what comes out."""
    build.say("vectors part by part")
    target = manifest.targets["cpu"]
    executor = open_executor(target, out, exact=True, threads=build.threads)
    checks = []
    for label, call in calls.items():
        graph = next(g for g in target.graphs if g.ar == call.ar)
        made = _run_parts(executor, graph, call, out / VECTORS / label)
        worst = min(sqnr_db(table[k].dequantize(v), table[k].dequantize(made[k])) for k, v in call.outputs.items())
        # A wide product may sum in another order once it is sliced, and a code that flips between two grid
        # points grows through the layers. One row sums in the same order, so there equality can be asked for.
        checks.append(Check(f"split: parts against whole, {label}", worst, "dB",
                            gate="split_db" if call.ar == 1 else "wide_db"))
    executor.close()
    return checks


def _run_parts(executor: Executor, graph: Graph, call: record.Call, folder: Path) -> Arrays:
    values = dict(call.inputs)
    for part in graph.parts:
        inputs = {t.name: np.ascontiguousarray(values[t.name]) for t in part.inputs}
        outputs = executor.run(Graph(graph.ar, graph.cl, (part,)), inputs)
        record.save(folder / part.graph, record.Call(call.ar, inputs, outputs))
        values |= outputs
    return values
