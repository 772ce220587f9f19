"""An encoding as JSON: float32 scales survive exactly, and nothing that breaks the arithmetic comes back in."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from edgeforge_runtime.typed import shown

from edgeforge.encoding import Encoding, Ints, check


def dump(e: Encoding) -> dict[str, Any]:
    out: dict[str, Any] = {"bits": e.bits, "signed": e.signed, "scale": e.scale.tolist(),
                           "zero_point": e.zero_point.tolist()}
    for key in ("axis", "block", "channel"):
        if getattr(e, key) is not None:
            out[key] = getattr(e, key)
    if e.block_scale is not None:
        out["block_scale"] = e.block_scale.tolist()
    if e.e4m3:
        out["e4m3"] = True
    return out


def parse(raw: Any) -> Encoding:
    if not isinstance(raw, dict):
        raise ValueError(f"{shown(raw)} is no encoding")
    bits, signed = _integer(raw["bits"], 2, 32), raw["signed"]
    with np.errstate(over="ignore"):  # what becomes infinite is refused below
        scale = _numbers(raw["scale"]).astype(np.float32)
    e4m3 = raw.get("e4m3", False)
    for key, said in (("signed", signed), ("e4m3", e4m3)):
        if not isinstance(said, bool):
            raise ValueError(f"{key} is {shown(said)}")
    places = {key: _integer(raw[key], 0, 7) for key in ("axis", "channel") if raw.get(key) is not None}
    block = _integer(raw["block"], 1, 1 << 20) if raw.get("block") is not None else None
    blocks = _whole(raw["block_scale"]) if raw.get("block_scale") is not None else None
    made = Encoding(bits, signed, scale, _whole(raw["zero_point"]), block=block, block_scale=blocks, e4m3=e4m3,
                    **places)
    check(made)
    return made


def _numbers(raw: Any) -> npt.NDArray[Any]:
    found = np.asarray(raw)
    if found.dtype.kind not in "iuf" or not found.size:
        raise ValueError(f"{shown(raw)} where numbers should be")
    return found


def _whole(raw: Any) -> Ints:
    found = _numbers(raw)
    if not np.array_equal(found, np.rint(found)):
        raise ValueError(f"{shown(raw)} where whole numbers should be")
    return found.astype(np.int64)


def _integer(raw: Any, low: int, high: int) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool) or not low <= raw <= high:
        raise ValueError(f"{shown(raw)} where a number from {low} to {high} should be")
    return raw
