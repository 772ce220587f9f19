"""A file of AIMET encodings, before any graph is there: its version, its entries, and what kind of grid each one is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from edgeforge_runtime.typed import read_json, shown

from edgeforge.errors import EdgeForgeError
from edgeforge.export.aimet import VERSIONS

Scales = Literal["tensor", "channel", "whole blocks", "float blocks"]
_SCALES: dict[str, Scales] = {"LPBQ": "whole blocks", "PER_BLOCK": "float blocks", "PER_CHANNEL": "channel"}
DAMAGED = (KeyError, TypeError, ValueError, IndexError, ArithmeticError, AttributeError)
"""what reading JSON of another shape raises"""


@dataclass(frozen=True)
class Glance:
    """What an entry says by itself. scales: one for the tensor, one a slice of an axis, or blocks of whole-number
    (LPBQ) or float scales."""

    name: str
    bits: int
    scales: Scales
    symmetric: bool


def entries(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Name and entry. Tools tell the layout of an entry by its keys, so one in another layout is refused.

    Raises:
        EdgeForgeError: no such file, no JSON of AIMET's, another version.
    """
    try:
        document = read_json(path)
        version = document["version"]
        if version not in VERSIONS:
            raise ValueError(f"version {shown(version)}; known: {', '.join(VERSIONS)}")
        flat = version == "1.0.0"
        sections = ("activation_encodings", "param_encodings") if flat else ("encodings",)
        rows = [row for section in sections for row in document[section]]
        for row in rows:
            if ("bw" in row) != flat:
                raise ValueError(f"{shown(row['name'])} is not in the layout of version {version}")
        return [(str(row["name"]), row) for row in rows]
    except (OSError, *DAMAGED) as error:
        raise EdgeForgeError(f"{path} holds no AIMET encodings: {words(error)}",
                             "AIMET writes them with sim.export(..., encoding_version=...)") from error


def glances(path: Path) -> tuple[Glance, ...]:
    """Every entry with an integer grid, at a glance; EdgeForgeError as `entries`, and of a damaged entry."""
    found = []
    for name, raw in entries(path):
        try:
            if not is_float(raw):
                found.append(_glance(name, raw))
        except DAMAGED as error:
            raise damaged(path, name, error) from error
    return tuple(found)


def damaged(path: Path, name: str, error: Exception) -> EdgeForgeError:
    """What to raise for one entry."""
    return EdgeForgeError(f"{path}: the encoding of {name}: {words(error)}")


def words(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error)


def is_float(raw: dict[str, Any]) -> bool:
    """Does the entry say floating point?"""
    return "FLOAT" in str(raw.get("dtype", "")) or "float" in str(raw.get("output_dtype", ""))


def dtype(raw: dict[str, Any]) -> tuple[int, bool]:
    """Bits, and whether codes are signed, of an entry of 2.0.0 or 2.1.0."""
    said = str(raw["output_dtype"])
    return width(int(said.rpartition("int")[2])), not said.startswith("u")


def width(raw: Any) -> int:
    """ValueError: no number of bits that an integer has."""
    if not isinstance(raw, int) or not 2 <= raw <= 32:
        raise ValueError(f"{shown(raw)} bits")
    return raw


def integers(raw: Any) -> npt.NDArray[np.int64]:
    """ValueError: other than whole numbers."""
    found = np.asarray(raw)
    if found.dtype.kind not in "iuf" or not ((np.abs(found) < 1 << 53) & (found == np.rint(found))).all():
        raise ValueError(f"{shown(raw)} where whole numbers should be")
    return found.astype(np.int64)


def _glance(name: str, raw: dict[str, Any]) -> Glance:
    if "bw" not in raw:
        (bits, signed), zero = dtype(raw), integers(raw.get("y_zero_point", 0))
        lpbq = "per_block_int_scale" in raw or isinstance(raw.get("y_scale"), dict)
        kind = "LPBQ" if lpbq else "PER_BLOCK" if "block_size" in raw else "PER_CHANNEL" if "axis" in raw else ""
        symmetric = lpbq or bool((zero == (0 if signed else 1 << (bits - 1))).all())
    else:
        kind, bits = str(raw["enc_type"]), width(raw["bw"])
        symmetric = bool((integers(raw["offset"]) == -(1 << (bits - 1))).all())
        bits = width(raw["compressed_bw"]) if kind == "LPBQ" else bits
    return Glance(name, bits, _SCALES.get(kind, "tensor"), symmetric)
