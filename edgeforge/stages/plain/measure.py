"""A plain graph's artifact against the ONNX file that it came from, on samples that calibration does not see."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
from edgeforge_runtime.manifest import Part, Tensor
from edgeforge_runtime.plain import PlainManifest, PlainSession, one_graph

from edgeforge.build import Build
from edgeforge.calibrate.samples import Arrays
from edgeforge.encodings import Table
from edgeforge.export import record
from edgeforge.gates import Check
from edgeforge.graph import edit, enter, store
from edgeforge.metrics import sqnr_db
from edgeforge.stages.plain.original import REFERENCE


def save_manifest(build: Build, graph: ir.Graph, out: Path, table: Table | None = None) -> PlainManifest:
    """Writes the manifest of model.onnx; with a table, for its integer form."""
    part = Part(store.MODEL, graph_name(build), tensors(graph.inputs, table), tensors(graph.outputs, table))
    manifest = PlainManifest(build.onnx.name, {"cpu": one_graph("onnx-cpu", part)})
    manifest.save(out)
    return manifest


def graph_name(build: Build) -> str:
    """The graph's name in compiled files, made of letters, digits, '_', '.' and '-'."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "_" for c in build.onnx.name)


def tensors(values: Sequence[ir.Value], table: Table | None) -> tuple[Tensor, ...]:
    """The boundary as the manifest declares it."""
    found = []
    for value in values:
        name = str(value.name)
        encoding = table.get(name) if table is not None else None
        shape = tuple(d for d in edit.known_dims(value) if isinstance(d, int))
        if encoding is not None:
            found.append(Tensor(name, encoding.dtype, shape, float(encoding.scale), int(encoding.zero_point)))
        else:
            found.append(Tensor(name, enter.numpy_type(value), shape))
    return tuple(found)


def outputs(build: Build, folder: Path) -> Arrays:
    """What an artifact's CPU graph answers to the evaluation samples, as reals [samples, *shape]."""
    with PlainSession.open(folder, threads=build.threads, exact=True) as session:
        made = [session.run(feeds) for feeds in build.onnx.samples.evaluation]
    return {name: np.stack([m[name] for m in made]) for name in made[0]}


def gate(build: Build, folder: Path, reference: Path, stage: str, limit: str, fitted: bool) -> list[Check]:
    """One figure for each output: all evaluation samples together, and the worst one.

    Args:
        limit: the gate. fitted: the artifact was fitted to the samples that calibration sees.
    """
    build.say("measuring against the original graph")
    samples = build.onnx.samples
    expected, made = record.load_arrays(reference / REFERENCE), outputs(build, folder)
    checks = []
    for name, truth in expected.items():
        worst = min((sqnr_db(a, b), i) for i, (a, b) in enumerate(zip(truth, made[name], strict=True)))
        note = f"worst of {len(truth)} samples: {worst[0]:.1f} dB, number {samples.first_evaluated + worst[1]}"
        if fitted and samples.fitted:
            note += f"; {samples.fitted} of them calibrated on too"
        checks.append(Check(f"{stage}: {name}", sqnr_db(truth, made[name]), "dB", gate=limit, note=note))
    return checks
