"""quantize: ranges -> encodings, printed as a QDQ model that is the reference for the compiled one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch

from edgeforge.build import Build
from edgeforge.encodings import FILE, Table
from edgeforge.gates import Check
from edgeforge.graph import store
from edgeforge.quantize import assign
from edgeforge.stages.calibrate import load_ranges
from edgeforge.stages.plain import measure
from edgeforge.stages.quantize import fit


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes table.json, float/ (see stages/quantize.py), and the QDQ model with integer inputs and outputs."""
    model = store.load(sources["optimize"])
    ranges = load_ranges(sources["calibrate"])
    options = build.recipe.quantize
    bits = assign.Grids(options.weights, options.activations, embedding=options.activations)
    samples = [{name: torch.from_numpy(np.array(array)) for name, array in feeds.items()}
               for feeds in build.onnx.samples.calibration]
    checks = fit(build, model, samples, _unseen_inputs(model.graph, ranges), bits, out)
    table = Table.load(out / FILE)
    measure.save_manifest(build, store.load(out).graph, out, table)
    return checks + measure.gate(build, out, sources["optimize"], "quantize",
                                  build.recipe.gates.quantized(options.weights).db)


def _unseen_inputs(graph: ir.Graph, ranges: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Inputs never seen may go further than those seen, like every other activation."""
    names = [str(v.name) for v in graph.inputs if str(v.name) in ranges]
    return ranges | {name: assign.wider(ranges[name]) for name in names}
