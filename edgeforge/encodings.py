"""The table of encodings: one value, one integer grid, keyed by the value's name.

JSON for other tools and QDQ nodes for onnxruntime are two printings of this one table.
real = (code - zero_point) * scale, as in ONNX QuantizeLinear.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from edgeforge_runtime.typed import read_json, shown

from edgeforge.errors import EdgeForgeError

FILE = "table.json"
_FLOOR = 1e-9
"""smallest scale: far below any real signal's LSB, large enough to stay normal in float32"""

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Encoding:
    """An integer grid.

    scale and zero_point have shape () per tensor, [C] per channel along `axis`, or the blocked shape
    (the tensor's with `axis` divided by `block`) per block. LPBQ adds `block_scale`: integers 1..16 in the
    blocked shape, while scale stays [C] along `channel`; a block's step is block_scale * scale.
    """

    bits: int
    signed: bool
    scale: Floats
    zero_point: Ints
    axis: int | None = None
    block: int | None = None
    block_scale: Ints | None = None
    channel: int | None = None

    @property
    def low(self) -> int:
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def high(self) -> int:
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1

    @property
    def dtype(self) -> str:
        """ONNX/numpy name of the code's type."""
        return f"{'int' if self.signed else 'uint'}{self.bits}"

    @property
    def symmetric(self) -> bool:
        middle = 0 if self.signed else 1 << (self.bits - 1)
        return bool((self.zero_point == middle).all())

    def steps(self) -> Floats:
        """The effective scale: [C] * integers for LPBQ, else scale itself."""
        if self.block_scale is None:
            return self.scale
        shape = [1] * self.block_scale.ndim
        shape[_known(self.channel)] = -1
        return (self.block_scale * self.scale.reshape(shape)).astype(np.float32)

    def quantize(self, array: npt.NDArray[np.floating]) -> Ints:
        """Codes of a real array: round half to even, clip to the grid."""
        scale, zero = self._grid(array.shape)
        codes = np.rint(np.asarray(array, np.float32) / scale) + zero
        clipped: Ints = np.clip(codes, self.low, self.high).astype(np.int64)
        return clipped

    def dequantize(self, codes: npt.NDArray[np.integer]) -> Floats:
        """Reals of a code array, in float32 as onnxruntime computes them."""
        scale, zero = self._grid(codes.shape)
        return ((codes.astype(np.int64) - zero).astype(np.float32) * scale).astype(np.float32)

    def take(self, axis: int, start: int, stop: int) -> Encoding:
        """The encoding of tensor.take(range(start, stop), axis); a per-tensor grid is its own slice."""
        if self.scale.ndim == 0 or (self.axis != axis and self.block is None):
            return self
        if self.block is not None:
            raise EdgeForgeError("slicing a per-block encoding is not supported yet")
        return replace(self, scale=self.scale[start:stop], zero_point=self.zero_point[start:stop])

    def _grid(self, shape: tuple[int, ...]) -> tuple[Floats, Ints]:
        scale = self.steps()
        if self.block is not None:
            axis = _known(self.axis)
            return scale.repeat(self.block, axis), self.zero_point.repeat(self.block, axis)
        if scale.ndim == 0:
            return scale, self.zero_point
        view = [1] * len(shape)
        view[_known(self.axis)] = -1
        return scale.reshape(view), self.zero_point.reshape(view)


def per_tensor(low: float, high: float, bits: int, symmetric: bool = False, signed: bool = False) -> Encoding:
    """Smallest grid that holds [low, high] and zero exactly; symmetric unsigned puts zero at 2^(bits-1)."""
    low, high = min(low, 0.0), max(high, 0.0)
    if not np.isfinite([low, high]).all():
        raise EdgeForgeError(f"range [{low}, {high}] is not finite", "the float model overflows on this text")
    levels = (1 << bits) - 1
    if symmetric or signed:
        scale = max(max(-low, high) / (levels // 2), _FLOOR)
        zero = 0 if signed else 1 << (bits - 1)
    else:
        scale = max((high - low) / levels, _FLOOR)
        zero = int(np.clip(round(-low / scale), 0, levels))
    return Encoding(bits, signed, np.array(scale, np.float32), np.array(zero, np.int64))


def per_channel(weight: npt.NDArray[np.floating], axis: int, bits: int) -> Encoding:
    """Signed symmetric min-max grid per slice along axis; a zero or tiny slice keeps a positive scale."""
    others = tuple(a for a in range(weight.ndim) if a != axis)
    peak = np.abs(weight).max(others)
    scale = np.maximum(peak / ((1 << (bits - 1)) - 1), _FLOOR).astype(np.float32)
    return Encoding(bits, True, scale, np.zeros(scale.shape, np.int64), axis)


def reals(array: npt.NDArray[Any]) -> Floats:
    """An ONNX constant (float, half or bfloat16) as float32."""
    return array.astype(np.float32)


class Table(Mapping[str, Encoding]):
    """All encodings of one graph: parameters and activations."""

    def __init__(self, entries: Mapping[str, Encoding] | None = None) -> None:
        self._entries = dict(entries or {})

    def __getitem__(self, name: str) -> Encoding:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def set(self, name: str, encoding: Encoding) -> None:
        """Adds an entry; a second, different one under the same name breaks the law and is an error."""
        have = self._entries.get(name)
        if have is not None and not equal(have, encoding):
            raise EdgeForgeError(f"two encodings for {name}",
                                 "one value has one grid; insert a Requantize node")
        self._entries[name] = encoding

    def save(self, path: Path) -> None:
        """Writes the table as JSON; float32 scales survive exactly."""
        path.write_text(json.dumps({n: _dump(e) for n, e in sorted(self._entries.items())}), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Table:
        try:
            raw = read_json(path)
            if not isinstance(raw, dict):
                raise ValueError(f"it holds a {type(raw).__name__}")
            return cls({name: _parse(entry) for name, entry in raw.items()})
        except (OSError, ValueError, KeyError) as error:
            raise EdgeForgeError(f"{path} is not an encoding table: {error}") from error


def equal(a: Encoding, b: Encoding) -> bool:
    """Same grid, to the last bit."""
    def same(x: Any, y: Any) -> bool:
        return (x is None) == (y is None) and (x is None or np.array_equal(x, y))
    plain = (a.bits, a.signed, a.axis, a.block, a.channel) == (b.bits, b.signed, b.axis, b.block, b.channel)
    arrays = ((a.scale, b.scale), (a.zero_point, b.zero_point), (a.block_scale, b.block_scale))
    return plain and all(same(x, y) for x, y in arrays)


def _dump(e: Encoding) -> dict[str, Any]:
    out: dict[str, Any] = {"bits": e.bits, "signed": e.signed, "scale": e.scale.tolist(),
                           "zero_point": e.zero_point.tolist()}
    for key in ("axis", "block", "channel"):
        if getattr(e, key) is not None:
            out[key] = getattr(e, key)
    if e.block_scale is not None:
        out["block_scale"] = e.block_scale.tolist()
    return out


def _parse(raw: Any) -> Encoding:
    if not isinstance(raw, dict):
        raise ValueError(f"{shown(raw)} is no encoding")
    bits, signed = _integer(raw["bits"], 2, 32), raw["signed"]
    with np.errstate(over="ignore"):  # what becomes infinite is refused below
        scale = _numbers(raw["scale"]).astype(np.float32)
    if not isinstance(signed, bool):
        raise ValueError(f"signed is {shown(signed)}")
    places = {key: _integer(raw[key], 0, 7) for key in ("axis", "channel") if raw.get(key) is not None}
    block = _integer(raw["block"], 1, 1 << 20) if raw.get("block") is not None else None
    blocks = _numbers(raw["block_scale"]).astype(np.int64) if raw.get("block_scale") is not None else None
    made = Encoding(bits, signed, scale, _numbers(raw["zero_point"]).astype(np.int64), block=block, block_scale=blocks,
                    **places)
    _check(made)
    return made


def _check(e: Encoding) -> None:
    """What the arithmetic above takes for granted; ValueError says what does not hold."""
    blocked = e.scale if e.block_scale is None else e.block_scale
    if not (np.isfinite(e.scale).all() and (e.scale > 0).all()):
        raise ValueError("a scale is not finite and above 0")
    if not ((e.zero_point >= e.low) & (e.zero_point <= e.high)).all():
        raise ValueError(f"a zero point is not on the grid {e.low}..{e.high}")
    if e.block_scale is not None and not ((e.block_scale >= 1) & (e.block_scale <= 1 << e.bits)).all():
        raise ValueError(f"a block's scale is not within 1..{1 << e.bits}")
    wanted = 0 if e.axis is None else 1 if e.block is None else blocked.ndim
    if blocked.ndim != wanted or blocked.shape != e.zero_point.shape or (e.block is None) > (e.block_scale is None):
        raise ValueError(f"scales {list(blocked.shape)} and zero points {list(e.zero_point.shape)} do not fit axis "
                         f"{e.axis}, block {e.block}")
    if e.block is not None and not 0 <= (e.axis or 0) < blocked.ndim:
        raise ValueError(f"blocks {list(blocked.shape)} have no axis {e.axis}")
    if e.block_scale is not None and e.scale.shape != e.block_scale.shape[e.channel : _known(e.channel) + 1]:
        raise ValueError(f"channel {e.channel} of blocks {list(blocked.shape)} has other than {e.scale.size} scales")


def _numbers(raw: Any) -> npt.NDArray[Any]:
    found = np.asarray(raw)
    if found.dtype.kind not in "iuf" or not found.size:
        raise ValueError(f"{shown(raw)} where numbers should be")
    return found


def _integer(raw: Any, low: int, high: int) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool) or not low <= raw <= high:
        raise ValueError(f"{shown(raw)} where a number from {low} to {high} should be")
    return raw


def _known(axis: int | None) -> int:
    if axis is None:
        raise ValueError("the encoding has no axis")
    return axis
