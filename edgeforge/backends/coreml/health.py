"""Is coremltools here, and able? Its version, and one product written, read back and executed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import tempfile
import time
from pathlib import Path

import numpy as np

from edgeforge.backends.coreml import limits
from edgeforge.backends.health import Abilities, Proof, Tool
from edgeforge.errors import EdgeForgeError
from edgeforge.targets import Chip

_NO_DEVICE = "Core ML runs on Apple's devices only; copy the bundle's device/ folder to one"


def tools() -> list[Tool]:
    """An extra: a problem only when it is there and cannot be used."""
    if importlib.util.find_spec(limits.DISTRIBUTION) is None:
        return [Tool(limits.DISTRIBUTION, None, "writes Core ML packages")]
    why = limits.problem()
    return [Tool(limits.DISTRIBUTION, importlib.metadata.version(limits.DISTRIBUTION), "writes Core ML packages", why,
                 limits.INSTALL if why else "")]


def abilities(chip: Chip) -> Abilities:
    """The same for every chip: one package for all of them, executed here op by op."""
    here = limits.problem()
    return Abilities(compile=here, emulate=here, run=_NO_DEVICE, inspect=here)


def proof(chip: Chip) -> Proof:
    """One product of a vector with codes of 4 bits: written, read from disk, executed."""
    name, begun = f"one product written for {chip.name} and executed", time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="edgeforge-doctor-") as folder:
            wrong = _product(Path(folder) / "product.mlpackage")
        return Proof(name, time.perf_counter() - begun, wrong)
    except (EdgeForgeError, ImportError) as error:
        return Proof(name, time.perf_counter() - begun, str(error), limits.INSTALL)


def _product(path: Path) -> str:
    from edgeforge.backends.coreml import mil, package
    from edgeforge.backends.coreml.interpret.run import Interpreter

    codes = np.arange(-8, 8).reshape(4, 4, 1, 1)
    with mil.function({"x": ((1, 4, 1, 1), mil.FLOAT16)}) as made:
        weight = mil.mb.constexpr_blockwise_shift_scale(
            data=codes.astype(mil.integers(4, True)), scale=np.full((4, 1, 1, 1), 0.5, np.float16))
        made.set_outputs([mil.mb.conv(x=made.inputs["x"], weight=weight, pad_type="valid", name="y")])
    package.write({"main": made}, "main", path, {})
    found = Interpreter.open(path).run("main", {"x": np.ones((1, 4, 1, 1))})["y"].ravel()
    wanted = codes.sum((1, 2, 3)) * 0.5
    return "" if np.array_equal(found, wanted) else f"it makes {found.tolist()}, not {wanted.tolist()}"
