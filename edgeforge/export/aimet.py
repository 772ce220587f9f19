"""The encodings printed as AIMET's JSON: what AI Hub, QAIRT and AIMET itself read beside a float ONNX.

Version 1.0.0 lists activations and parameters apart, with offsets for the unsigned grid (offset = -zero_point of the
code shifted to start at 0), flat arrays and no axes: blocks of a weight [inputs, outputs] are written outputs first.
2.0.0 and 2.1.0 are one list with the meaning of ONNX QuantizeLinear; they differ in how LPBQ is spelled. The layouts
follow AIMET's published encoding specification, checked against aimet-onnx 2.42.0; E4M3 with a scale is not in it, and
is called what it is (FLOAT of 8 bits, float8e4m3fn), so that no reader takes it for whole numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edgeforge.encodings import Encoding, Table
from edgeforge.errors import EdgeForgeError

Version = Literal["1.0.0", "2.0.0", "2.1.0"]
VERSIONS: tuple[Version, ...] = ("1.0.0", "2.0.0", "2.1.0")
Array = npt.NDArray[Any]


def write(path: Path, table: Table, parameters: Iterable[str], producer: str, version: Version = "1.0.0") -> None:
    """Writes the table; `parameters` names the entries that belong to weights.

    Raises:
        EdgeForgeError: blocks that the format cannot hold (a kernel larger than 1x1).
    """
    names = set(parameters)
    document: dict[str, Any] = {"version": version, "producer": producer}
    if version == "1.0.0":
        document["activation_encodings"] = [_flat_entry(n, e) for n, e in sorted(table.items()) if n not in names]
        document["param_encodings"] = [_flat_entry(n, e) for n, e in sorted(table.items()) if n in names]
    else:
        spell = _expansion if version == "2.0.0" else _nested_expansion
        document["encodings"] = [{"name": n} | _nested_entry(n, e, spell) for n, e in sorted(table.items())]
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def turned(rank: int, channel: int) -> bool:
    """Does 1.0.0 write this weight's blocks turned, outputs first?"""
    return rank == 2 and channel == 1


def _flat_entry(name: str, e: Encoding) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "dtype": "FLOAT" if e.e4m3 else "INT", "enc_type": _kind(e), "bw": e.bits,
                             "is_sym": e.symmetric}
    if e.block is None:
        return entry | {"scale": _flat(e.scale), "offset": _flat(_offset(e))}
    if e.block_scale is None:
        return entry | {"scale": _flat(_rows(name, e, e.scale)), "offset": _flat(_rows(name, e, _offset(e))),
                        "block_size": e.block}
    return entry | {
        "bw": 2 * e.bits, "compressed_bw": e.bits, "scale": _flat(e.scale),
        "offset": [-(1 << (2 * e.bits - 1))] * e.scale.size,
        "per_block_int_scale": _flat(_rows(name, e, e.block_scale)), "block_size": e.block}


def _nested_entry(name: str, e: Encoding, spell: Callable[[Encoding, Array], dict[str, Any]]) -> dict[str, Any]:
    entry: dict[str, Any] = {"output_dtype": e.dtype}
    if e.block_scale is not None:
        _rows(name, e, e.block_scale)
        return entry | spell(e, e.block_scale) | {"axis": e.axis, "block_size": e.block}
    entry["y_scale"] = e.scale.tolist()
    if e.zero_point.any():
        entry["y_zero_point"] = e.zero_point.tolist()
    if e.axis is not None:
        entry["axis"] = e.axis
    if e.block is not None:
        _rows(name, e, e.scale)
        entry["block_size"] = e.block
    return entry


def _expansion(e: Encoding, blocks: Array) -> dict[str, Any]:
    shape = [1] * blocks.ndim
    shape[e.channel or 0] = -1
    return {"per_channel_float_scale": e.scale.reshape(shape).tolist(), "per_block_int_scale": blocks.tolist()}


def _nested_expansion(e: Encoding, blocks: Array) -> dict[str, Any]:
    return {"y_scale": {"x": blocks.tolist(), "x_scale": e.scale.tolist(), "axis": e.channel}}


def _rows(name: str, e: Encoding, blocks: Array) -> Array:
    """Blocked numbers in 1.0.0's order; refuses what has more than outputs and blocks."""
    outputs = [a for a, size in enumerate(blocks.shape) if size != 1 and a != e.axis]
    if len(outputs) > 1:
        raise EdgeForgeError(f"{name}: AIMET's encodings cannot hold blocks {list(blocks.shape)}",
                             "only the weights of 1x1 convolutions and matrix products may have blocks")
    return blocks.T if turned(blocks.ndim, 1 - (e.axis or 0)) else blocks


def _kind(e: Encoding) -> str:
    if e.block_scale is not None:
        return "LPBQ"
    if e.block is not None:
        return "PER_BLOCK"
    return "PER_TENSOR" if e.scale.ndim == 0 else "PER_CHANNEL"


def _offset(e: Encoding) -> Array:
    return -e.zero_point if e.e4m3 else -(e.zero_point - e.low)


def _flat(array: Array) -> list[Any]:
    found: list[Any] = np.asarray(array).reshape(-1).tolist()
    return found
