"""Is Qualcomm's compiler here, whole and able? Its libraries, and one operator compiled and run for real."""

from __future__ import annotations

import importlib.metadata
import platform
import tempfile
import time
from pathlib import Path

import numpy as np

from edgeforge.backends.health import Abilities, Proof, Tool
from edgeforge.backends.qnn import wheel
from edgeforge.backends.qnn.chips import snapdragon
from edgeforge.backends.qnn.compiler import compile_part
from edgeforge.backends.qnn.job import GraphJob, PartJob
from edgeforge.errors import CompilerError
from edgeforge.targets import Chip, Snapdragon

_TIMEOUT_S = 60.0
_NO_DEVICE = "no phone is attached to a build; copy the bundle's device/ folder to it"
_ROUNDING = 1


def tools() -> list[Tool]:
    """The wheel with its QAIRT release, its libraries' state, and Genie."""
    try:
        found = wheel.find()
    except (CompilerError, importlib.metadata.PackageNotFoundError) as error:
        hint = getattr(error, "hint", "")
        return [Tool(wheel.DISTRIBUTION, None, problem=f"nothing can be compiled for Snapdragon chips: {error.args[0]}",
                     fix=_command(hint) or 'pip install "edgeforge-toolchain[qnn]"')]
    tools = [Tool(wheel.DISTRIBUTION, found.version, f"QAIRT {found.qairt}, {found.folder}", *_state(found))]
    genie = found.folder / wheel.GENIE
    return [*tools, Tool("Genie", found.qairt if genie.is_file() else None, "in the same wheel")]


def abilities(chip: Chip) -> Abilities:
    """The same for every chip: one wheel compiles for all of them, and emulates all of them."""
    try:
        wheel.find().check()
        here = ""
    except (CompilerError, importlib.metadata.PackageNotFoundError) as error:
        here = str(error.args[0])
    return Abilities(compile=here, emulate=here, run=_NO_DEVICE, inspect=here)


def proof(chip: Chip) -> Proof:
    """Compiles one Relu for the chip and runs it on the emulator, in a child; compares it with arithmetic."""
    name, begun = f"one operator compiled for {chip.name} and emulated", time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="edgeforge-doctor-") as folder:
            problem, detail = _relu(Path(folder), snapdragon(chip))
        return Proof(name, time.perf_counter() - begun, problem, detail=detail)
    except (CompilerError, importlib.metadata.PackageNotFoundError) as error:
        hint = _command(getattr(error, "hint", ""))
        return Proof(name, time.perf_counter() - begun, str(error.args[0]), hint)


def _relu(folder: Path, chip: Snapdragon) -> tuple[str, str]:
    """What is wrong with the outputs, and what the binary says about itself."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    grid = [numpy_helper.from_array(np.array(value), name)
            for name, value in (("scale", np.float32(1 / 4096)), ("zero", np.uint16(32768)))]
    nodes = [helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["real"], "dequantize"),
             helper.make_node("Relu", ["real"], ["positive"], "relu"),
             helper.make_node("QuantizeLinear", ["positive", "scale", "zero"], ["y"], "quantize")]
    x, y = (helper.make_tensor_value_info(n, TensorProto.UINT16, [1, 1, 8, 32]) for n in ("x", "y"))
    model = helper.make_model(helper.make_graph(nodes, "doctor", [x], [y], grid),
                              opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, folder / "relu.onnx")
    codes = np.linspace(0, 65535, 256).astype(np.uint16).reshape(1, 1, 8, 32)
    np.savez(folder / "x.npz", x=codes)
    job = PartJob("doctor", (GraphJob("relu", folder / "relu.onnx", folder / "x.npz"),), chip.soc_model, folder / "out",
                  False, chip.vtcm_mb, dsp_arch=chip.dsp_arch)
    part = compile_part(job, _TIMEOUT_S)
    with np.load(part.graphs[0].outputs or "") as made:
        apart = int(np.abs(made["y"].astype(int) - np.maximum(codes.astype(int), 32768)).max())
    info = part.info
    wrong = "" if apart <= _ROUNDING else f"the emulator's Relu is {apart} codes off"
    return wrong, f"QAIRT build {info.build_id}, soc {info.soc_model}, v{info.dsp_arch}"


def _state(found: wheel.Wheel) -> tuple[str, str]:
    """Problem and fix."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return (f"compiling needs Linux on x86-64, this is {platform.system()} on {platform.machine()}",
                "run edgeforge in a Linux x86-64 machine, container or WSL")
    try:
        found.check()
    except CompilerError as error:
        return error.message, _command(error.hint)
    return "", ""


def _command(hint: str) -> str:
    """The command inside a hint."""
    at = hint.find("pip install")
    return hint[at:].partition(" (")[0] if at >= 0 else ""
