"""`edgeforge doctor`: what this machine has, what can be done here for each chip, and what a failure means."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from packaging.requirements import InvalidRequirement, Requirement

from edgeforge import __version__, backends, cache, targets
from edgeforge.backends.faults import Fault, by_code, in_text
from edgeforge.backends.health import Abilities, Proof, Tool
from edgeforge.build import STAMP
from edgeforge.describe import describe
from edgeforge.errors import EdgeForgeError, RecipeError
from edgeforge.memory import memory

DISTRIBUTION = "edgeforge-toolchain"
_LOOSE = {"qai-hub": "jobs on Qualcomm AI Hub"}
"""tools that no backend here asks for; shown, never a problem"""
_FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimd", "asimddp", "i8mm")
_LEAST_RAM, _LEAST_DISK = 8 << 30, 10 << 30
_LOG_BYTES = 8 << 20


@dataclass(frozen=True)
class Machine:
    """Sizes in bytes; cores are physical; flags: what quantized arithmetic on the CPU profits from."""

    system: str
    cpu: str
    cores: int
    flags: tuple[str, ...]
    ram: int
    ram_free: int
    disk_free: int


@dataclass(frozen=True)
class Health:
    """Everything that was found. problems: what is wrong -> what mends it (empty: nothing known)."""

    edgeforge: str
    machine: Machine
    tools: tuple[Tool, ...]
    chips: dict[str, Abilities]
    proofs: tuple[Proof, ...]
    problems: dict[str, str]


def examine(folder: Path) -> Health:
    """Looks at this machine, and lets every backend compile something small. folder: whose disk is meant."""
    machine = _machine(folder)
    tools = list(_packages())
    chips: dict[str, Abilities] = {}
    proofs: list[Proof] = []
    for name in backends.names():
        owner = backends.backend(name)
        tools += owner.tools()
        mine = [c for c in targets.CHIPS.values() if c.backend == name]
        chips |= {c.name: owner.abilities(c) for c in mine}
        if mine and not chips[mine[0].name].compile:
            proofs.append(owner.proof(mine[0]))
    tools += [Tool(n, _version(n), what) for n, what in _LOOSE.items()]
    problems = {t.problem: t.fix for t in tools if t.problem}
    problems |= {f"{p.name}: {p.problem}": p.fix for p in proofs if p.problem}
    return Health(__version__, machine, tuple(tools), chips, tuple(proofs), problems | dict(_shortages(machine)))


def explain(what: str) -> list[Fault]:
    """Causes of an error code, of a message, of a log file, of the logs in a folder, or of what is wrong in a bundle:
    none, when nothing is.

    Raises:
        EdgeForgeError: the log cannot be read, or nothing in it is known. RecipeError: nothing was given.
    """
    if not what.strip():
        raise RecipeError("an empty text has no cause", "give an error code, a message, a log, or a bundle")
    rows = [fault for name in backends.names() for fault in backends.backend(name).faults]
    path = Path(what)
    text = _logs(path) if os.path.exists(path) else what  # False also for a text that no file system takes
    if text is None:
        return []
    found = by_code(rows, text) or in_text(rows, text)
    if not found and text is not what and (path / STAMP).is_file():
        raise EdgeForgeError(f"{path}: {text}", "copy the folder again, or build it again")
    if not found:
        where = f"the log {path}" if text is not what else repr(what)
        known = ", ".join(dict.fromkeys(c for f in rows for c in f.codes))
        raise EdgeForgeError(f"no known cause for {where}", f"known codes: {known}")
    return found


def _logs(path: Path) -> str | None:
    """The end of a log, of every log in a folder, or what is wrong with a bundle; None: nothing is."""
    if (path / STAMP).is_file():
        name = cache.damage(path)
        return "\n".join(describe(path)["problems"]) or (f"{name} has other contents than it was made with"
                                                         if name is not None else None)
    files = sorted(path.glob("*.log")) if path.is_dir() else [path]
    if not files:
        raise EdgeForgeError(f"{path} holds no .log file", "give a log file, an error code or a message")
    try:
        return "\n".join(_tail(file) for file in files)
    except OSError as error:
        raise EdgeForgeError(f"{error.filename}: {error.strerror}", "give a log file that can be read") from error


def _tail(file: Path) -> str:
    with file.open("rb") as source:
        source.seek(max(0, file.stat().st_size - _LOG_BYTES))
        return source.read(_LOG_BYTES).decode("utf-8", "replace")


def _packages() -> Iterator[Tool]:
    """Python and every package that edgeforge itself asks for, against the versions that it asks for."""
    yield Tool("python", platform.python_version())
    try:
        wanted = [Requirement(r) for r in importlib.metadata.requires(DISTRIBUTION) or []]
    except (importlib.metadata.PackageNotFoundError, InvalidRequirement):
        yield Tool(DISTRIBUTION, None, problem=f"{DISTRIBUTION} is not installed, so its requirements are not known",
                   fix="pip install -e . -e ./runtimes")
        return
    for requirement in wanted:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version, command = _version(requirement.name), f'pip install "{requirement}"'
        if version is None:
            yield Tool(requirement.name, None, problem=f"{requirement.name} is not installed", fix=command)
        elif not requirement.specifier.contains(version, prereleases=True):
            problem = f"{requirement.name} {version} is here, and {requirement.specifier} is needed"
            yield Tool(requirement.name, version, problem=problem, fix=command)
        else:
            yield Tool(requirement.name, version)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _machine(folder: Path) -> Machine:
    words = _cpuinfo()
    here = memory()
    have = set((words.get("flags") or words.get("Features") or "").split())
    return Machine(f"{platform.system()} {platform.release()} {platform.machine()}",
                   words.get("model name") or platform.processor() or platform.machine(),
                   psutil.cpu_count(logical=False) or os.cpu_count() or 1, tuple(f for f in _FLAGS if f in have),
                   here.total, here.free, shutil.disk_usage(folder).free)


def _cpuinfo() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _shortages(machine: Machine) -> Iterator[tuple[str, str]]:
    if machine.ram < _LEAST_RAM:
        yield (f"{machine.ram / 2**30:.1f} GiB of memory; a 135M model takes 6",
               "a machine with more memory, or smaller `split.part_bytes` and `target.context`")
    if machine.disk_free < _LEAST_DISK:
        yield f"{machine.disk_free / 2**30:.1f} GiB of disk are free", "free some: the cache holds every stage's model"
