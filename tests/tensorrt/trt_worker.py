"""Builds one engine with TensorRT-RTX and prints what its verbose log says about it (JSON). Runs as a child process.

Usage: trt_worker.py MODEL PROFILES, where PROFILES is JSON: [{input: [dims]}, ...], one fixed shape a profile.
"""

from __future__ import annotations

import json
import sys

import tensorrt_rtx as trt


class Log(trt.ILogger):
    """Keeps every message."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.messages: list[str] = []

    def log(self, severity: object, message: str) -> None:
        self.messages.append(message)


def build(model: str, profiles: list[dict[str, list[int]]]) -> dict[str, object]:
    """bytes of the engine (0 on failure), the layer dump, and the parser's errors."""
    log = Log()
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(model):
        errors = [f"{e.node_name()}: {e.desc()}" for e in map(parser.get_error, range(parser.num_errors))]
        return {"bytes": 0, "layers": "", "errors": errors}
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM86, 0)
    for shapes in profiles:
        profile = builder.create_optimization_profile()
        for name, shape in shapes.items():
            profile.set_shape(name, shape, shape, shape)
        if config.add_optimization_profile(profile) < 0:
            return {"bytes": 0, "layers": "", "errors": [f"profile refused: {shapes}"]}
    engine = builder.build_serialized_network(network, config)
    dump = next((m for m in log.messages if m.lstrip().startswith("Layers:")), "")
    return {"bytes": len(bytes(engine)) if engine is not None else 0, "layers": dump, "errors": log.messages[-5:]}


if __name__ == "__main__":
    print(json.dumps(build(sys.argv[1], json.loads(sys.argv[2]))))
