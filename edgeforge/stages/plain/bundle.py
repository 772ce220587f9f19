"""bundle: the graph for the CPU and for the device, its vectors, and the proof of what was measured."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from edgeforge_runtime.plain import PlainManifest

from edgeforge import artifact, lock, precision
from edgeforge.backends import backend
from edgeforge.build import Build
from edgeforge.gates import Check
from edgeforge.report import html
from edgeforge.report.record import REPORT, collect
from edgeforge.stages.bundle import PAGE, sizes, stamps
from edgeforge.stages.export import VECTORS


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes the bundle: manifest, CPU model, device files, vectors, report, lock."""
    source = sources["quantize"]
    artifact.copy_model(source, out)
    manifest = PlainManifest.load(source)
    vendor = backend(build.chip.backend)
    compiled = vendor.bundle_graph(manifest.part("cpu"), sources["compile"], out)
    dataclasses.replace(manifest, targets=manifest.targets | compiled, stamps=stamps(sources)).save(out)
    shutil.copytree(sources["export"] / VECTORS, out / VECTORS)
    precision.bundle(build.recipe, source, out)
    report = collect(build, sources, vendor.graph_not_seen, None)
    report.save(out / REPORT)
    (out / PAGE).write_text(html.render(report), encoding="utf-8")
    lock.save(build, sources, out, (REPORT, PAGE, precision.RECIPE))
    return sizes(out, report)
