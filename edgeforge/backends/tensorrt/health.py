"""Is TensorRT's builder here, and able? A version, and one small engine built for real."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from edgeforge.backends.health import Abilities, Proof, Tool
from edgeforge.backends.tensorrt import limits, wheel
from edgeforge.backends.tensorrt.engine import Engine, build_engine
from edgeforge.backends.tensorrt.job import EngineJob
from edgeforge.errors import CompilerError
from edgeforge.targets import Chip

_TIMEOUT_S = 60.0
_NO_DEVICE = "an engine runs on its GPU only; `edgeforge selfcheck BUNDLE` there"
_SIZE = 64


def tools() -> list[Tool]:
    """The edition that is installed. An extra: a problem only when it is there and cannot be used."""
    try:
        found = wheel.find()
    except CompilerError as error:
        there = "is not installed" not in error.message
        return [Tool(wheel.DISTRIBUTION, None, "builds engines for NVIDIA GPUs", error.message if there else "",
                     error.hint if there else "")]
    return [Tool(wheel.DISTRIBUTION if found.edition is wheel.RTX else found.edition.module, found.version,
                 "builds engines for NVIDIA GPUs" + ("" if found.edition.crosses else ", for the one in this machine"))]


def abilities(chip: Chip) -> Abilities:
    """Building needs no GPU; everything else does."""
    mine = limits.gpu(chip)
    try:
        wheel.find()
        here = "" if limits.builds_here(mine) else limits.elsewhere(mine)
    except CompilerError as error:
        here = error.message
    return Abilities(compile=here, emulate="there is no emulator of a GPU", run=_NO_DEVICE, inspect="")


def proof(chip: Chip) -> Proof:
    """Builds one product for the chip, in a child, and reads its header back."""
    name, begun = f"one product built for {chip.name}", time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="edgeforge-doctor-") as folder:
            engine = _product(Path(folder), chip)
            asked = limits.compute(limits.gpu(chip))
            wrong = engine.header is not None and set(engine.header.compute) != set(asked)
            problem = f"the engine is for {engine.header}, not {asked}" if wrong else ""
            detail = f"{engine.path.stat().st_size >> 10} KiB, {', '.join(engine.versions.values())}"
        return Proof(name, time.perf_counter() - begun, problem, detail=detail)
    except CompilerError as error:
        return Proof(name, time.perf_counter() - begun, error.message, error.hint)


def _product(folder: Path, chip: Chip) -> Engine:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.eye(_SIZE, dtype=np.float16), "weight")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT16, [1, _SIZE]) for n in ("x", "y"))
    node = helper.make_node("MatMul", ["x", "weight"], ["y"], "product")
    graph = helper.make_graph([node], "doctor", [x], [y], [weight])
    model = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), model)
    job = EngineJob(model, limits.compute(limits.gpu(chip)), ({"x": (1, _SIZE)},), folder / "out")
    return build_engine(job, _TIMEOUT_S)
