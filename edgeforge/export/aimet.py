"""The encodings printed as AIMET's JSON, version 1.0.0: what AI Hub and QAIRT read beside a float ONNX.

Offsets there are for the unsigned grid: offset = -zero_point of the code shifted to start at 0. The layout
follows AIMET's published encoding specification.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from edgeforge.encodings import Encoding, Table

VERSION = "1.0.0"


def write(path: Path, table: Table, parameters: Iterable[str], producer: str) -> None:
    """Writes the table; `parameters` names the entries that belong to weights."""
    names = set(parameters)
    document = {
        "version": VERSION,
        "producer": producer,
        "activation_encodings": [_entry(n, e) for n, e in sorted(table.items()) if n not in names],
        "param_encodings": [_entry(n, e) for n, e in sorted(table.items()) if n in names],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _entry(name: str, e: Encoding) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "dtype": "INT", "enc_type": _kind(e), "bw": e.bits,
                             "is_sym": e.symmetric}
    if e.block_scale is None:
        return entry | {"scale": _flat(e.scale), "offset": _flat(_offset(e))} | (
            {"block_size": e.block} if e.block is not None else {})
    return entry | {
        "bw": 2 * e.bits, "compressed_bw": e.bits, "scale": _flat(e.scale),
        "offset": [-(1 << (2 * e.bits - 1))] * e.scale.size,
        "per_block_int_scale": _flat(e.block_scale), "block_size": e.block}


def _kind(e: Encoding) -> str:
    if e.block_scale is not None:
        return "LPBQ"
    if e.block is not None:
        return "PER_BLOCK"
    return "PER_TENSOR" if e.scale.ndim == 0 else "PER_CHANNEL"


def _offset(e: Encoding) -> np.ndarray:
    return -(e.zero_point - e.low)


def _flat(array: np.ndarray) -> list[Any]:
    found: list[Any] = np.asarray(array).reshape(-1).tolist()
    return found
