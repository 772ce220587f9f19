"""Rotary tables: rope.npz, and the graph inputs that take rows of it."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias
from zipfile import BadZipFile

import numpy as np

from .codes import Floats
from .errors import ManifestError
from .manifest import COS, SIN, SWA_COS, SWA_SIN, Graph

Tables: TypeAlias = Mapping[str, Floats]
"""float32 [positions, rotary dims / 2], by the graph input that takes rows of one"""

ARRAYS = {COS: "cos", SIN: "sin", SWA_COS: "swa_cos", SWA_SIN: "swa_sin"}
"""graph inputs, and the arrays of rope.npz; the second pair is there where layers rotate by two tables"""


def read(path: Path) -> dict[str, Floats]:
    """The tables in rope.npz; ManifestError when it does not hold cos and sin."""
    try:
        with np.load(path, allow_pickle=False) as held:
            wanted = [name for name, array in ARRAYS.items() if array in held or name in (COS, SIN)]
            return {name: held[ARRAYS[name]].astype(np.float32) for name in wanted}
    except (OSError, ValueError, KeyError, TypeError, EOFError, NotImplementedError, zlib.error, BadZipFile) as error:
        raise ManifestError(f"{path} holds no rotary tables cos and sin: {error}") from error


def needed(graphs: Iterable[Graph], tables: Tables) -> dict[str, Floats]:
    """The tables that the graphs take rows of; ManifestError where one is missing or has another width."""
    found: dict[str, Floats] = {}
    for graph in graphs:
        for name, tensor in graph.boundary()[0].items():
            if name not in ARRAYS:
                continue
            if name not in tables:
                raise ManifestError(f"the graphs take {name}, and there is no rotary table {ARRAYS[name]}")
            table = found[name] = tables[name]
            if table.ndim != 2 or table.shape[-1] != tensor.shape[-1]:
                raise ManifestError(f"rotary table {name} is {table.shape}, not [positions, {tensor.shape[-1]}]")
    return found
