"""A decoder as a package: emitted, executed and compared, each in a process of its own, and put into a bundle."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from edgeforge_runtime.manifest import Target

from edgeforge import artifact
from edgeforge.backends import process
from edgeforge.backends.coreml import child, compiler, limits, target
from edgeforge.backends.coreml.device import verify_on_mac
from edgeforge.backends.coreml.job import Job
from edgeforge.backends.coreml.judge import Case
from edgeforge.build import Build
from edgeforge.encodings import FILE
from edgeforge.gates import Check
from edgeforge.quantize.weights import palette_file

PACKAGE, GOLDEN, VERIFY, DEVICE = "model.mlpackage", "golden", "verify_on_mac", "device"
_UNITS = {"ane": "CPU_AND_NE", "gpu": "CPU_AND_GPU"}
"""what verify_on_mac.py runs on, by the target's name"""
_MODEL = "Data/com.apple.CoreML/model.mlmodel"
_IDS = Path(artifact.REFERENCE) / artifact.IDS


def compile_decoder(build: Build, sources: Mapping[str, Path], out: Path) -> list[Check]:
    """See Backend.compile."""
    quantized, prefill, context = sources["quantize"], build.recipe.target.prefill, build.context
    build.say("emitting the Core ML package")
    tables = quantized / palette_file.FILE
    job = Job(quantized / artifact.FLOAT, quantized / FILE, tables if tables.is_file() else None,
              target.widths(prefill), context, out / PACKAGE)
    settings = build.recipe.compile
    sharing = compiler.write(job, settings.timeout_s, process.allowance(settings.memory_mb), build.failures / PACKAGE)
    build.say("executing the package against the float graph")
    case = Case(quantized, out / PACKAGE, prefill, context, sources["adapt"] / _IDS, build.threads, out / GOLDEN,
                limits.apple(build.chip).unit == "ane")
    folder = out / ".judge.partial"
    made = child.call(f"{PACKAGE}: its execution", case.dump(), folder, build.failures / "judge", settings.timeout_s,
                      process.allowance(settings.memory_mb))
    shutil.rmtree(folder)
    return [Check("compile: weights", sharing.total / 2**20, "MiB"),
            Check("compile: weights of both functions over the larger one's", sharing.share, "x", sense="at most",
                  gate="shared_bytes"),
            *(Check(**row) for row in made["checks"])]


def bundle_decoder(build: Build, sources: Mapping[str, Path], bundle: Path) -> dict[str, Target]:
    """See Backend.bundle."""
    for name in (PACKAGE, GOLDEN):
        shutil.copytree(sources["compile"] / name, bundle / DEVICE / name)
    shutil.copyfile(str(verify_on_mac.__file__), bundle / DEVICE / f"{VERIFY}.py")
    unit = limits.apple(build.chip).unit
    (bundle / DEVICE / GOLDEN / verify_on_mac.UNITS).write_text(f"{_UNITS[unit]}\n", encoding="utf-8")
    decoder = artifact.load_decoder(sources["quantize"])
    return {unit: target.target(decoder, target.widths(build.recipe.target.prefill), build.context,
                                  f"{DEVICE}/{PACKAGE}/{_MODEL}")}
