"""Is coremltools here, and able?"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import tempfile
import time
from pathlib import Path

from edgeforge.backends.coreml import child, limits, systems
from edgeforge.backends.health import Abilities, Proof, Tool
from edgeforge.errors import EdgeForgeError
from edgeforge.targets import Chip

_SECONDS = 120.0
_NO_DEVICE = "Core ML runs on Apple's devices only; copy the bundle's device/ folder to one"


def tools() -> list[Tool]:
    """Extras: a problem only when one is there and cannot be used."""
    return [_coremltools(), _coreai()]


def _coreai() -> Tool:
    name, purpose = next(iter(systems.COREAI)), "writes Core AI assets and executes them here"
    if importlib.util.find_spec("coreai") is None:
        return Tool(name, None, purpose)
    why = systems.coreai()
    return Tool(name, importlib.metadata.version(name), purpose, why, systems.INSTALL_COREAI if why else "")


def _coremltools() -> Tool:
    if importlib.util.find_spec(limits.DISTRIBUTION) is None:
        return Tool(limits.DISTRIBUTION, None, "writes Core ML packages")
    why = limits.problem()
    return Tool(limits.DISTRIBUTION, importlib.metadata.version(limits.DISTRIBUTION), "writes Core ML packages", why,
                limits.INSTALL if why else "")


def abilities(chip: Chip) -> Abilities:
    """The same for every chip: one package for all of them, executed here op by op."""
    here = limits.problem()
    return Abilities(compile=here, emulate=here, run=_NO_DEVICE, inspect=here)


def proof(chip: Chip) -> Proof:
    """One product of a vector with codes of 4 bits, in a process of its own: written, read from disk, executed."""
    name, begun, wrong, change = f"one product written for {chip.name} and executed", time.perf_counter(), "", ""
    if why := limits.problem():
        return Proof(name, 0.0, why, limits.INSTALL)
    try:
        with tempfile.TemporaryDirectory(prefix="edgeforge-doctor-") as folder:
            made = child.call("the proof", {"job": "prove"}, Path(folder) / "job", Path(folder) / "failed", _SECONDS)
            wrong = str(made["wrong"])
    except EdgeForgeError as error:
        wrong, change = error.message, limits.INSTALL
    return Proof(name, time.perf_counter() - begun, wrong, change)
