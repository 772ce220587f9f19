"""A file of AIMET encodings, before any graph is there: its layout, its entries, and what each shows to be wrong by
itself. How its arrays fit a value's shape is `aimet_read.py`'s to judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from edgeforge_runtime.typed import read_json, shown

from edgeforge.encoding import Encoding, Floats, Ints, check
from edgeforge.errors import EdgeForgeError
from edgeforge.export.aimet import VERSIONS

Scales = Literal["tensor", "channel", "whole blocks", "float blocks"]
_SCALES: dict[str, Scales] = {"PER_TENSOR": "tensor", "LPBQ": "whole blocks", "PER_BLOCK": "float blocks",
                              "PER_CHANNEL": "channel"}
_FLAT, _NESTED = ("activation_encodings", "param_encodings"), ("encodings",)
_BIAS = 32
_SHOWN = 10
DAMAGED = (KeyError, TypeError, ValueError, IndexError, ArithmeticError, AttributeError)
"""what reading JSON of another shape raises"""


@dataclass(frozen=True)
class Glance:
    """What an entry says by itself. scales: one for the tensor, one a slice of an axis, or blocks of whole-number
    (LPBQ) or float scales. block, inputs: with whole-number ones, inputs of a block, and of a channel."""

    name: str
    bits: int
    scales: Scales
    symmetric: bool
    block: int = 0
    inputs: int = 0


def entries(path: Path) -> dict[str, dict[str, Any]]:
    """Each name's entry, all of which are sound as far as they show it by themselves.

    Raises:
        EdgeForgeError: no such file, no JSON of AIMET's, another version, no entry, a damaged one, one in floating
            point, or two different ones for a name.
    """
    return _read(path)[0]


def glances(path: Path) -> tuple[Glance, ...]:
    """Every entry at a glance; EdgeForgeError as `entries`."""
    return tuple(_read(path)[1].values())


def damaged(path: Path, wrong: Mapping[str, Exception]) -> EdgeForgeError:
    """What to raise for entries (at least one)."""
    lines = [f"{name}: {words(error)}" for name, error in wrong.items()]
    more = f"\n  and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    said = f"the encoding of {lines[0]}" if len(lines) == 1 else (
        f"{len(lines)} encodings are damaged:" + "".join(f"\n  {line}" for line in lines[:_SHOWN]) + more)
    return EdgeForgeError(f"{path}: {said}", "mend what is wrong, or take it out: what the file does not name gets a "
                          "grid here")


def words(error: Exception) -> str:
    """An error for people: Python's own text only where it is made for them."""
    if isinstance(error, KeyError):
        return f"no {error}"
    return str(error) if isinstance(error, (ValueError, OSError)) else "its keys hold values of another kind"


def dtype(raw: dict[str, Any]) -> tuple[int, bool]:
    """Bits, and whether codes are signed, of an entry of 2.0.0 or 2.1.0."""
    said = str(raw["output_dtype"])
    kind, bits = said.rstrip("0123456789"), said.lstrip("uint")
    if kind not in ("int", "uint") or not bits.isdecimal():
        raise ValueError(f"output_dtype {shown(raw['output_dtype'])}; known: int4, uint16 and the like")
    return width(int(bits)), kind == "int"


def width(raw: Any) -> int:
    """ValueError: no number of bits that an integer has."""
    if not isinstance(raw, int) or not 2 <= raw <= 32:
        raise ValueError(f"{shown(raw)} bits")
    return raw


def size(raw: Any) -> int:
    """ValueError: no size of a block."""
    if not isinstance(raw, int) or raw < 1:
        raise ValueError(f"block_size {shown(raw)} where a whole number above 0 should be")
    return raw


def integers(raw: Any) -> Ints:
    """ValueError: other than whole numbers."""
    found = _numbers(raw, "whole numbers")
    if not ((np.abs(found) < 1 << 53) & (found == np.rint(found))).all():
        raise ValueError(f"{shown(raw)} where whole numbers should be")
    return found.astype(np.int64)


def reals(raw: Any) -> Floats:
    """ValueError: other than numbers. What float32 cannot hold becomes infinite or 0, which no grid takes."""
    with np.errstate(over="ignore"):
        return _numbers(raw, "scales").astype(np.float32)


def single(found: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The one number of a tensor with one grid; ValueError: several."""
    if found.size != 1:
        raise ValueError(f"PER_TENSOR with {found.size} numbers where 1 is needed")
    return found.reshape(())


def _numbers(raw: Any, what: str) -> npt.NDArray[Any]:
    try:
        found = np.asarray(raw)
    except ValueError:
        raise ValueError(f"lists of different lengths where {what} should be") from None
    if found.dtype.kind not in "iuf" or not found.size:
        raise ValueError(f"{shown(raw)} where {what} should be")
    return found


def _read(path: Path) -> tuple[dict[str, dict[str, Any]], dict[str, Glance]]:
    try:
        rows = _rows(read_json(path))
    except (OSError, ValueError) as error:
        raise EdgeForgeError(f"{path} holds no AIMET encodings: {words(error)}",
                             "AIMET writes them with sim.export(..., encoding_version=...)") from error
    found, seen, wrong = dict[str, dict[str, Any]](), dict[str, Glance](), dict[str, Exception]()
    for row in rows:
        name = row["name"]
        if found.setdefault(name, row) != row:
            raise EdgeForgeError(f"{path}: two different encodings for {name}", "delete one of the two entries")
        try:
            seen[name] = _glance(name, row)
        except DAMAGED as error:
            wrong[name] = error
    if wrong:
        raise damaged(path, wrong)
    return found, seen


def _rows(document: Any) -> list[dict[str, Any]]:
    """All entries. Tools tell the layout of an entry by its keys, so one in another layout is refused."""
    if not isinstance(document, dict):
        raise ValueError(f"{shown(document)} stands where an object with a version should")
    version, known = document.get("version"), ", ".join(VERSIONS)
    if version not in VERSIONS:
        raise ValueError(f"version {shown(version)}; known: {known}" if "version" in document else "no 'version'")
    sections, others, like = (_FLAT, _NESTED, "2.0.0") if version == "1.0.0" else (_NESTED, _FLAT, "1.0.0")
    if missing := [key for key in sections if key not in document]:
        looks = f"; it looks like version {like}" if all(key in document for key in others) else ""
        raise ValueError(f"no {missing[0]!r}, which version {version} has{looks}")
    for key in sections:
        if not isinstance(document[key], list):
            raise ValueError(f"{key!r} is no list (version 0.6.1 had none); versions that are read: {known}")
    rows = [row for key in sections for row in document[key]]
    for row in rows:
        _layout(row, version, like)
    if not rows:
        raise ValueError("it names no value")
    return rows


def _layout(row: Any, version: str, like: str) -> None:
    """ValueError: no entry of this version."""
    if not isinstance(row, dict):
        raise ValueError(f"{shown(row)} stands where an entry should")
    if not isinstance(row.get("name"), str):
        raise ValueError(f"an entry's name is {shown(row['name'])}" if "name" in row else "an entry has no 'name'")
    if ("bw" in row) != (version == "1.0.0"):
        looks = f"; it looks like version {like}" if "bw" in row or "output_dtype" in row else ""
        raise ValueError(f"{shown(row['name'])} is not in the layout of version {version}{looks}")


def _glance(name: str, raw: dict[str, Any]) -> Glance:
    """ValueError and others of DAMAGED: no integer grid. A bias's numbers are not read, as nothing here takes them."""
    if "float" in f"{raw.get('dtype')} {raw.get('output_dtype')}".lower():
        raise ValueError("it is in floating point, and every value needs an integer grid")
    flat = "bw" in raw
    kind, bits = (str(raw["enc_type"]), width(raw["bw"])) if flat else (_kind(raw), dtype(raw)[0])
    if kind not in _SCALES:
        raise ValueError(f"enc_type {shown(raw['enc_type'])} is not known; known: {', '.join(_SCALES)}")
    if bits == _BIAS:
        return Glance(name, bits, _SCALES[kind], symmetric=True)
    grid = (_flat if flat else _nested)(raw, kind)
    check(grid)
    shifted = flat and kind == "LPBQ" and (integers(raw["offset"]) != -(1 << (bits - 1))).any()
    whole, block = grid.block_scale, grid.block or 0
    sizes = (0, 0) if whole is None else (block, block * whole.size // grid.scale.size)
    return Glance(name, grid.bits, _SCALES[kind], grid.symmetric and not shifted, *sizes)


def _kind(raw: dict[str, Any]) -> str:
    """What 1.0.0 would call an entry of 2.0.0 or 2.1.0."""
    if "per_block_int_scale" in raw or isinstance(raw.get("y_scale"), dict):
        return "LPBQ"
    if raw.get("block_size") is not None:
        return "PER_BLOCK"
    return "PER_TENSOR" if raw.get("axis") is None else "PER_CHANNEL"


def _flat(raw: dict[str, Any], kind: str) -> Encoding:
    """The grid of 1.0.0 on its flat arrays, unsigned."""
    if np.any(raw.get("zero_point_shift", 0)):
        raise ValueError("its zero point lies between two codes (zero_point_shift)")
    scale, bits = reals(raw["scale"]), width(raw["bw"])
    if kind == "LPBQ":
        return _lpbq(raw, width(raw["compressed_bw"]), scale, integers(raw["per_block_int_scale"]))
    zero = -integers(raw["offset"])
    if kind == "PER_TENSOR":
        return Encoding(bits, False, single(scale), single(zero))
    return Encoding(bits, False, scale, zero, 0, size(raw["block_size"]) if kind == "PER_BLOCK" else None)


def _nested(raw: dict[str, Any], kind: str) -> Encoding:
    """The grid of 2.0.0 or 2.1.0 along the first axis, wherever it has its own."""
    bits, signed = dtype(raw)
    if kind == "LPBQ":
        steps = raw.get("y_scale")
        step, whole = (steps["x_scale"], steps["x"]) if isinstance(steps, dict) else (
            raw["per_channel_float_scale"], raw["per_block_int_scale"])
        return _lpbq(raw, bits, reals(step), integers(whole))
    scale = reals(raw["y_scale"])
    zero = integers(raw["y_zero_point"]) if "y_zero_point" in raw else np.zeros(scale.shape, np.int64)
    return Encoding(bits, signed, scale, zero, None if kind == "PER_TENSOR" else 0,
                    size(raw["block_size"]) if kind == "PER_BLOCK" else None)


def _lpbq(raw: dict[str, Any], bits: int, scale: Floats, whole: Ints) -> Encoding:
    """Channels as rows, each with as many blocks as another."""
    if whole.size % scale.size:
        raise ValueError(f"scales: {scale.size}, which does not divide its {whole.size} blocks among channels")
    rows = whole.reshape(scale.size, -1)
    return Encoding(bits, True, scale.reshape(-1), np.zeros(rows.shape, np.int64), 1, size(raw["block_size"]), rows, 0)
