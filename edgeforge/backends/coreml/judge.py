"""A finished package before its judges, in a process of its own: what is known to leave the Neural Engine, and whether
it computes what the float graph does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgeforge.encoding import Encoding
from edgeforge.encodings import FILE, Table
from edgeforge.gates import Check
from edgeforge.quantize.weights import palette_file
from edgeforge.quantize.weights.palette import Palette

_LISTED = 8


@dataclass(frozen=True)
class Case:
    """folder: of the packages and packages.json. quantized: what they were made of. ids: a file of text, [windows,
    tokens]. golden: a folder to make, see parity.checks. engine: are they for the Neural Engine?"""

    quantized: Path
    folder: Path
    prefill: int
    context: int
    ids: Path
    threads: int
    golden: Path
    engine: bool

    def dump(self) -> dict[str, Any]:
        return {"job": "judge"} | {k: str(v.resolve()) if isinstance(v, Path) else v
                                   for k, v in dataclasses.asdict(self).items()}

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Case:
        paths = {f.name: Path(raw[f.name]) for f in dataclasses.fields(cls) if f.type == "Path"}
        return cls(**{f.name: raw[f.name] for f in dataclasses.fields(cls)} | paths)


def run(case: Case) -> dict[str, Any]:
    """The checks, as rows."""
    from edgeforge.backends.coreml import parity

    forms: dict[str, Encoding | Palette] = {**Table.load(case.quantized / FILE), **palette_file.beside(case.quantized)}
    ids = np.load(case.ids)[0]
    found = [*(_placed(case.folder) if case.engine else ()),
             *parity.checks(case.quantized, forms, case.folder, case.prefill, case.context, ids, case.threads,
                            case.golden)]
    return {"checks": [dataclasses.asdict(c) for c in found]}


def _placed(folder: Path) -> Iterator[Check]:
    from edgeforge.backends.coreml import chain, lint
    from edgeforge.backends.coreml.interpret import program

    packages = chain.load(folder)
    functions = {p.file: program.load(folder / p.file) for p in packages}
    found = [f"{name}: {said}" if len(packages) > 1 else said
             for name, held in functions.items() for said in lint.lint(held)]
    if any(f.states for held in functions.values() for f in held.values()):
        wide = [said for held in functions.values() for said in lint.states(held)]
        yield Check("compile: states that the Neural Engine may refuse", len(wide), "states",
                    note="; ".join(wide[:_LISTED]))
    for name in dict.fromkeys(n for held in functions.values() for n in held):
        count = sum(lint.narrow(held[name]) for held in functions.values() if name in held)
        yield Check(f"compile: {name}: rows shorter than 64 bytes", count, "values", note="the Neural Engine pads them")
    more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    yield Check("compile: known to leave the Neural Engine", len(found), "ops", 0, "at most",
                note="; ".join(found[:_LISTED]) + more if found else "where an op really runs is decided on the device")
