"""bundle: everything that runs the model, and the proof of what was measured, in one folder."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from edgeforge_runtime.manifest import Manifest

from edgeforge import artifact, lock, precision
from edgeforge.backends import backend
from edgeforge.build import Build
from edgeforge.gates import Check
from edgeforge.graph import store
from edgeforge.report import html
from edgeforge.report.record import REPORT, Report, collect
from edgeforge.stages import export
from edgeforge.stages import split as split_stage

PAGE = "report.html"


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes the bundle: manifest, CPU model, device files, encodings, vectors, report, lock."""
    source = sources["quantize"]
    artifact.carry(source, out)
    artifact.copy_model(source, out)
    vendor = backend(build.chip.backend)
    compiled = vendor.bundle(build, sources, out)
    manifest = Manifest.load(source)
    dataclasses.replace(manifest, targets=manifest.targets | compiled, stamps=stamps(sources)).save(out)
    shutil.copytree(sources["export"] / export.VECTORS, out / "vectors" / "whole")
    if "split" in sources:
        shutil.copytree(sources["split"] / split_stage.VECTORS, out / "vectors" / "parts")
    precision.bundle(build.recipe, source, out)
    report = collect(build, sources, vendor.not_seen, build.context)
    report.save(out / REPORT)
    (out / PAGE).write_text(html.render(report), encoding="utf-8")
    lock.save(build, sources, out, (REPORT, PAGE, precision.RECIPE))
    return sizes(out, report)


def stamps(sources: dict[str, Path]) -> dict[str, str]:
    """The cache key of every stage that the bundle was made from."""
    return {f"stage.{name}": path.name for name, path in sources.items()}


def sizes(out: Path, report: Report) -> list[Check]:
    """What the bundle weighs and took."""
    total = sum(p.stat().st_size for p in out.rglob("*") if p.is_file())
    model = (out / store.DATA).stat().st_size
    return [Check("bundle: files", total / 2**20, "MiB"), Check("bundle: CPU model", model / 2**20, "MiB"),
            Check("bundle: all stages", report.seconds, "s", note="bounds: see the report")]
