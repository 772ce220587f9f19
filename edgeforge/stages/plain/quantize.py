"""quantize: ranges -> encodings, printed as a QDQ model that is the reference for the compiled one."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch

from edgeforge import gates
from edgeforge.build import Build
from edgeforge.encodings import FILE, Table
from edgeforge.gates import Check
from edgeforge.graph import store
from edgeforge.quantize import assign, footprint
from edgeforge.stages import foreign, mixed
from edgeforge.stages.calibrate import load_ranges
from edgeforge.stages.plain import measure
from edgeforge.stages.quantize import Seen, fit


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes table.json, float/ (see stages/quantize.py), and the QDQ model with integer inputs and outputs."""
    model = store.load(sources["optimize"])
    ranges = _unseen_inputs(model.graph, load_ranges(sources["calibrate"]))
    options = build.recipe.quantize
    bits = assign.Grids(options.weights, options.activations, embedding=options.activations)
    samples = [{name: torch.from_numpy(np.array(array)) for name, array in feeds.items()}
               for feeds in build.onnx.samples.calibration]
    given = foreign.given(build, model.graph, bits, {})

    def make(build: Build, folder: Path) -> tuple[list[Check], float]:
        checks = fit(build, model.clone(), samples, Seen(ranges), bits, folder, given)
        measure.save_manifest(build, store.load(folder).graph, folder, Table.load(folder / FILE))
        four = footprint.four_bits(model.graph, Table.load(folder / FILE))
        limit = gates.of_bits("quantize_db", four)
        return checks + measure.gate(build, folder, sources["optimize"], "quantize", limit, fitted=True), math.nan

    return mixed.run(build, model, samples, given.table, make, out)


def _unseen_inputs(graph: ir.Graph, ranges: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Inputs never seen may go further than those seen, like every other activation."""
    names = [str(v.name) for v in graph.inputs if str(v.name) in ranges]
    return ranges | {name: assign.wider(ranges[name]) for name in names}
