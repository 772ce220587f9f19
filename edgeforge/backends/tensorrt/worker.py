"""Child process: builds one engine. ``python -m edgeforge.backends.tensorrt.worker engine_job.json``

Everything is written beside it: ``model.engine``, ``layers.txt`` (the builder's account of the fused layers) and
``result.json`` last, so that its presence means success. What is refused is printed, a line a reason, behind
REFUSED and the name of the ONNX node. The calls are those that TensorRT-RTX and enterprise TensorRT share; strong
typing is what both have.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeforge.backends import orphan
from edgeforge.backends.tensorrt import wheel
from edgeforge.backends.tensorrt.job import ENGINE, LAYERS, REFUSED, RESULT, EngineJob
from edgeforge.errors import CompilerError, EdgeForgeError

_DUMP = "Layers:"
_WEIGHTS, _ACTIVATIONS = re.compile(r"Total Weights Memory: (\d+)"), re.compile(r"Total Activation Memory: (\d+)")
"""lines of the log, in bytes; the second comes once a profile"""


def build(trt: Any, job: EngineJob, versions: Mapping[str, str], folder: Path) -> None:
    """The whole job; CompilerError names what the parser or the builder did not take."""
    begun = time.monotonic()
    text: list[str] = []
    log = _logger(trt, text)
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    os.chdir(job.onnx.parent)  # an engine's bytes hang on this path too, see engine.py
    if not parser.parse_from_file(job.onnx.name):
        for error in map(parser.get_error, range(parser.num_errors)):
            print(f"{REFUSED}{error.node_name()}\t{error.node_operator()}: {error.desc()}", flush=True)
        raise CompilerError("the parser refused the model")
    _allow_plain_attention(network)
    engine = builder.build_serialized_network(network, _config(trt, builder, job))
    if engine is None:
        raise CompilerError("the builder returned no engine")
    (folder / ENGINE).write_bytes(bytes(engine))
    (folder / LAYERS).write_text(next((m for m in text if m.lstrip().startswith(_DUMP)), ""), encoding="utf-8")
    result = {"versions": dict(versions), "compute": list(job.compute), "seconds": time.monotonic() - begun,
              "weights_bytes": max((int(n) for m in text for n in _WEIGHTS.findall(m)), default=0),
              "activation_bytes": [int(n) for m in text for n in _ACTIVATIONS.findall(m)]}
    (folder / RESULT).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _config(trt: Any, builder: Any, job: EngineJob) -> Any:
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if job.compute:
        if not hasattr(config, "set_compute_capability"):
            raise CompilerError(f"{trt.__name__} builds for the GPU of this machine only, not for "
                                f"{', '.join(job.compute)}")
        config.num_compute_capabilities = len(job.compute)
        for index, name in enumerate(job.compute):
            capability = trt.ComputeCapability.__members__.get(name)
            if capability is None:
                raise CompilerError(f"{trt.__name__} {trt.__version__} knows no {name}, only "
                                    f"{', '.join(n for n in trt.ComputeCapability.__members__ if n.startswith('SM'))}")
            config.set_compute_capability(capability, index)
    for number, shapes in enumerate(job.profiles):
        profile = builder.create_optimization_profile()
        for name, shape in shapes.items():
            profile.set_shape(name, shape, shape, shape)
        if config.add_optimization_profile(profile) < 0:
            raise CompilerError(f"optimization profile {number} was refused: {dict(shapes)}")
    return config


def _allow_plain_attention(network: Any) -> None:
    """Where an edition has no attention kernel for the shapes, the parts of it do; checks.py counts the fused ones.
    TensorRT-RTX 1.7.1 has one for every head that limits.py lets pass."""
    for index in range(network.num_layers):
        attention = getattr(network.get_layer(index), "attention", None)
        if attention is not None:
            attention.decomposable = True


def _logger(trt: Any, messages: list[str]) -> Any:
    """Keeps every message; says those that are warnings or worse, which are the ones that explain a failure."""
    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            messages.append(message)
            if int(severity) <= int(trt.ILogger.WARNING):
                print(f"{str(severity).rpartition('.')[2].lower()}: {message}", flush=True)

    return Log()


def main(argv: list[str]) -> int:
    orphan.end_with_parent()
    path = Path(argv[0]).resolve()
    folder = path.parent
    os.chdir(folder)
    for stale in (RESULT, ENGINE, LAYERS):
        (folder / stale).unlink(missing_ok=True)
    try:
        found = wheel.find()
        build(found.load(), EngineJob.load(path), found.stamp(), folder)
    except EdgeForgeError as error:
        print(f"Error: {error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
