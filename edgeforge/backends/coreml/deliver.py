"""A decoder as a package: emitted in a child process, executed and compared, and put into a bundle."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from edgeforge_runtime.manifest import Target

from edgeforge import artifact
from edgeforge.backends import process
from edgeforge.backends.coreml import compiler, parity, target
from edgeforge.backends.coreml.coreai.job import Judge
from edgeforge.backends.coreml.device import verify_on_mac
from edgeforge.backends.coreml.job import Job
from edgeforge.backends.coreml.sharing import Sharing
from edgeforge.build import Build
from edgeforge.encodings import FILE, Table
from edgeforge.gates import Check

PACKAGE, GOLDEN, VERIFY, DEVICE, TARGET = "model.mlpackage", "golden", "verify_on_mac", "device", "ane"
ASSET, ASSET_TARGET, _PROGRAM = "model.aimodel", "coreai", "main.mlirb"
_MODEL = "Data/com.apple.CoreML/model.mlmodel"
_LISTED = 8
_FLOAT = "float"
"""in a quantize artifact: the float model that belongs to the table"""
_IDS = Path("reference") / "ids.npy"
"""in an adapt artifact: [windows, tokens]"""


def compile_decoder(build: Build, sources: Mapping[str, Path], out: Path) -> list[Check]:
    """See Backend.compile."""
    wanted = build.recipe.apple.format
    return [*(_package(build, sources, out) if wanted != "aimodel" else ()),
            *(_asset(build, sources, out) if wanted != "mlpackage" else ())]


def _asset(build: Build, sources: Mapping[str, Path], out: Path) -> list[Check]:
    from edgeforge.backends.coreml.coreai import judge

    build.say("Core AI: writing the asset and executing it")
    settings = build.recipe.compile
    job = Judge(sources["quantize"], sources["adapt"] / _IDS, build.recipe.target.prefill, build.context,
                build.threads, {"float16": out / ASSET})
    return judge.ask(job, settings.timeout_s, process.allowance(settings.memory_mb))


def _package(build: Build, sources: Mapping[str, Path], out: Path) -> list[Check]:
    quantized, prefill, context = sources["quantize"], build.recipe.target.prefill, build.context
    build.say("emitting the Core ML package")
    job = Job(quantized / _FLOAT, quantized / FILE, None, target.widths(prefill), context, out / PACKAGE)
    settings = build.recipe.compile
    sharing = compiler.write(job, settings.timeout_s, process.allowance(settings.memory_mb))
    build.say("executing the package against the float graph")
    ids = np.load(sources["adapt"] / _IDS)[0]
    return [*_structure(sharing, out / PACKAGE),
            *parity.checks(quantized, Table.load(quantized / FILE), out / PACKAGE, prefill, context, ids,
                           build.threads, out / GOLDEN)]


def _structure(sharing: Sharing, package: Path) -> Iterator[Check]:
    from edgeforge.backends.coreml import lint
    from edgeforge.backends.coreml.interpret import program

    yield Check("compile: weights", sharing.total / 2**20, "MiB")
    yield Check("compile: weights of both functions over the larger one's", sharing.share, "x", sense="at most",
                gate="shared_bytes")
    functions = program.load(package)
    found = lint.lint(functions)
    more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    yield Check("compile: known to leave the Neural Engine", len(found), "ops", 0, "at most",
                note="; ".join(found[:_LISTED]) + more if found else "where an op really runs is decided on the device")


def bundle_decoder(build: Build, sources: Mapping[str, Path], bundle: Path) -> dict[str, Target]:
    """See Backend.bundle."""
    decoder, compiled = artifact.load_decoder(sources["quantize"]), sources["compile"]
    widths, found = target.widths(build.recipe.target.prefill), dict[str, Target]()
    if (compiled / PACKAGE).is_dir():
        for name in (PACKAGE, GOLDEN):
            shutil.copytree(compiled / name, bundle / DEVICE / name)
        shutil.copyfile(str(verify_on_mac.__file__), bundle / DEVICE / f"{VERIFY}.py")
        found[TARGET] = target.target(decoder, widths, build.context, f"{DEVICE}/{PACKAGE}/{_MODEL}")
    if (compiled / ASSET).is_dir():
        shutil.copytree(compiled / ASSET, bundle / DEVICE / ASSET)
        made = target.target(decoder, widths, build.context, f"{DEVICE}/{ASSET}/{_PROGRAM}")
        found[ASSET_TARGET] = replace(made, executor=target.COREAI)
    return found
