"""A decoder as a package: emitted, executed and compared, each in a process of its own, and put into a bundle."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from edgeforge_runtime.manifest import Target

from edgeforge import artifact
from edgeforge.backends import process
from edgeforge.backends.coreml import chain, child, compiler, limits, systems, target
from edgeforge.backends.coreml.chain import Package
from edgeforge.backends.coreml.coreai import account
from edgeforge.backends.coreml.coreai.judge import Judge, ask
from edgeforge.backends.coreml.device import verify_on_mac
from edgeforge.backends.coreml.job import Job
from edgeforge.backends.coreml.judge import Case
from edgeforge.build import Build
from edgeforge.encodings import FILE
from edgeforge.gates import Check
from edgeforge.quantize.weights import palette_file

PACKAGE, GOLDEN, VERIFY, SWIFT = "model.mlpackage", "golden", "verify_on_mac", "Decode.swift"
ASSET, ASSET_TARGET = "model.aimodel", "coreai"
_UNITS = {"ane": "CPU_AND_NE", "gpu": "CPU_AND_GPU"}
"""what verify_on_mac.py runs on, by the target's name"""
_IDS = Path(artifact.REFERENCE) / artifact.IDS


def compile_decoder(build: Build, sources: Mapping[str, Path], out: Path) -> list[Check]:
    """See Backend.compile."""
    wanted = build.recipe.apple.format
    return [*(_packages(build, sources, out) if wanted != "aimodel" else ()),
            *(_asset(build, sources, out) if wanted != "mlpackage" else ())]


def _asset(build: Build, sources: Mapping[str, Path], out: Path) -> list[Check]:
    build.say("Core AI: writing the asset and executing it")
    settings = build.recipe.compile
    job = Judge(sources["quantize"], sources["adapt"] / _IDS, build.recipe.target.prefill, build.context,
                build.threads, {"float16": ASSET})
    return ask(job, out, build.failures / ASSET, settings.timeout_s, process.allowance(settings.memory_mb))


def _packages(build: Build, sources: Mapping[str, Path], out: Path) -> Iterator[Check]:
    quantized, prefill, context = sources["quantize"], build.recipe.target.prefill, build.context
    chip, wanted = limits.apple(build.chip), build.recipe.apple
    build.say("emitting the Core ML package")
    tables = quantized / palette_file.FILE
    job = Job(quantized / artifact.FLOAT, quantized / FILE, tables if tables.is_file() else None,
              target.widths(prefill), context, out / PACKAGE, systems.package_bytes(build.recipe, chip),
              wanted.kv == "state", systems.system(build.recipe).specification)
    settings = build.recipe.compile
    packages = compiler.write(job, settings.timeout_s, process.allowance(settings.memory_mb), build.failures / PACKAGE)
    chain.save(out, packages)
    build.say("executing the package against the float graph")
    case = Case(quantized, out, prefill, context, sources["adapt"] / _IDS, build.threads, out / GOLDEN,
                chip.unit == "ane")
    folder = out / ".judge.partial"
    made = child.call(f"{PACKAGE}: its execution", case.dump(), folder, build.failures / "judge", settings.timeout_s,
                      process.allowance(settings.memory_mb))
    shutil.rmtree(folder)
    yield from _weights(packages)
    yield from (Check(**row) for row in made["checks"])


def _weights(packages: Sequence[Package]) -> Iterator[Check]:
    yield Check("compile: weights", sum(p.sharing.total for p in packages) / 2**20, "MiB",
                note=f"in {len(packages)} packages" if len(packages) > 1 else "")
    yield Check("compile: weights of both functions over the larger one's", max(p.sharing.share for p in packages), "x",
                sense="at most", gate="shared_bytes")


def bundle_decoder(build: Build, sources: Mapping[str, Path], bundle: Path) -> dict[str, Target]:
    """See Backend.bundle."""
    decoder, compiled = artifact.load_decoder(sources["quantize"]), sources["compile"]
    widths, folder = target.widths(build.recipe.target.prefill), bundle / target.DEVICE
    found = dict[str, Target]()
    folder.mkdir()
    if (compiled / chain.FILE).is_file():
        packages, unit = chain.load(compiled), limits.apple(build.chip).unit
        for name in (*(p.file for p in packages), GOLDEN):
            shutil.copytree(compiled / name, folder / name)
        shutil.copyfile(str(verify_on_mac.__file__), folder / f"{VERIFY}.py")
        shutil.copyfile(Path(str(verify_on_mac.__file__)).with_name(SWIFT), folder / SWIFT)
        for name, table in artifact.load_rope(sources["quantize"]).items():  # Swift reads no .npz
            (folder / f"{name}.f16").write_bytes(np.ascontiguousarray(table, "<f2").tobytes())
        (folder / GOLDEN / verify_on_mac.UNITS).write_text(f"{_UNITS[unit]}\n", encoding="utf-8")
        own = chain.target(packages, f"{target.DEVICE}/", widths, build.context)
        found = {unit: replace(own, options={"units": _UNITS[unit]}),
                 target.SIMULATOR: replace(own, executor=target.SIMULATOR)}
    if (compiled / ASSET).is_dir():
        shutil.copytree(compiled / ASSET, folder / ASSET)
        made = target.target(decoder, widths, build.context, f"{target.DEVICE}/{ASSET}/{account.PROGRAM}")
        found[ASSET_TARGET] = replace(made, executor=target.COREAI)
    return found
