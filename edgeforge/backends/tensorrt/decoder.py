"""A decoder as one engine: emitted, compared, built, checked, and into a bundle."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeforge_runtime.manifest import Manifest, Target

from edgeforge import artifact
from edgeforge.backends import process
from edgeforge.backends.ending import ChildFailed
from edgeforge.backends.tensorrt import checks, emulate, limits, parity, trtexec
from edgeforge.backends.tensorrt.emit import Emitted, emit
from edgeforge.backends.tensorrt.engine import Engine, build_engine, load_engine
from edgeforge.backends.tensorrt.job import ENGINE, JOB, ONNX, SUMMARY, EngineJob, Shape
from edgeforge.build import Build
from edgeforge.encodings import FILE, Table
from edgeforge.gates import Check
from edgeforge.graph import store
from edgeforge.targets import Gpu

DEVICE, TARGET = "device", "trt"
_ENGINE = "engine"


def compile_decoder(build: Build, sources: Mapping[str, Path], out: Path) -> list[Check]:
    """See Backend.compile. Where no engine can be made for the chip here, the ONNX is all there is."""
    quantized, gpu = sources["quantize"], limits.gpu(build.chip)
    table = Table.load(quantized / FILE)
    build.say("rewriting the graph for TensorRT")
    emitted = emit(store.load(quantized / artifact.FLOAT), table, build.context, gpu.int8_alone)
    (out / ONNX).mkdir()
    model = store.save(emitted.model, out / ONNX)
    profiles = emitted.profiles(build.widths)
    trtexec.write(out / ONNX, profiles, emitted.model)
    build.say("the emitted graph on the CPU against the float graph")
    ids = artifact.reference_ids(sources["adapt"])[0]
    found = parity.checks(quantized, table, emitted, model, ids, build.threads)
    if not limits.builds_here(gpu):
        return [*found, Check("compile: engine", 0, "MiB", note=limits.elsewhere(gpu))]
    return found + _engine(build, gpu, emitted, model, profiles, out)


def _engine(build: Build, gpu: Gpu, emitted: Emitted, model: Path, profiles: Sequence[Mapping[str, Shape]],
            out: Path) -> list[Check]:
    build.say("TensorRT's builder")
    job = EngineJob(model, limits.compute(gpu), tuple(profiles), out / _ENGINE, build.failures / _ENGINE)
    settings = build.recipe.compile
    try:
        engine = build_engine(job, settings.timeout_s, process.allowance(settings.memory_mb))
    except ChildFailed:
        _keep_model(job)
        raise
    if engine.header is not None:
        (out / SUMMARY).write_text(json.dumps(_summary(engine), indent=1) + "\n", encoding="utf-8")
    return list(checks.structure(engine, emitted, profiles))


def _keep_model(job: EngineJob) -> None:
    """Into the failed job's folder: the stage's own goes away, and the job is to be run again alone."""
    if job.failure.is_dir():
        shutil.copytree(job.onnx.parent, job.failure / ONNX)
        dataclasses.replace(job, onnx=job.failure / ONNX / job.onnx.name).save(job.failure / JOB)


def _summary(engine: Engine) -> dict[str, Any]:
    """What nobody can read off the engine later without a GPU."""
    dump = engine.dump()
    layers = [{"profile": x.profile, "name": x.name, "kind": x.kind, "tactic": x.tactic, "onnx": list(x.onnx),
               "constants": [[t.dtype, *t.shape] for t in x.constants]} for x in dump.layers]
    return {"compute": list(engine.compute), "versions": engine.versions, "weights_bytes": engine.weights_bytes,
            "activation_bytes": list(engine.activation_bytes), "inputs": dump.inputs, "layers": layers}


def bundle_decoder(build: Build, sources: Mapping[str, Path], bundle: Path) -> dict[str, Target]:
    """See Backend.bundle: the engine, its ONNX with the command that builds it elsewhere, and what is in it."""
    compiled, folder = sources["compile"], bundle / DEVICE
    folder.mkdir()
    shutil.copytree(compiled / ONNX, folder / ONNX)
    if (compiled / _ENGINE).is_dir():
        engine = load_engine(compiled / _ENGINE)
        shutil.copyfile(engine.path, folder / ENGINE)
        if engine.header is not None:
            shutil.copyfile(compiled / SUMMARY, folder / SUMMARY)
    cpu = Manifest.load(sources["quantize"]).targets["cpu"]
    widths, context = [g.ar for g in cpu.graphs], cpu.graphs[0].cl
    return {TARGET: emulate.target(store.load(compiled / ONNX), f"{DEVICE}/{ENGINE}", widths, context)}


