"""The table of encodings: one value, one integer grid, keyed by the value's name.

JSON for other tools and QDQ nodes for onnxruntime are two printings of this one table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from edgeforge_runtime.typed import read_json

from edgeforge.encoding_json import dump, parse
from edgeforge.errors import EdgeForgeError
from edgeforge.grid import Encoding, Floats, Ints, equal

__all__ = ["FILE", "Encoding", "Floats", "Table", "equal", "input_axis", "lpbq", "per_block", "per_channel",
           "per_tensor", "reals"]

FILE = "table.json"
_FLOOR = 1e-9
"""smallest scale: far below any real signal's LSB, large enough to stay normal in float32"""


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


def per_channel(weight: npt.NDArray[np.floating], axis: int, bits: int, symmetric: bool = True) -> Encoding:
    """Min-max grid per slice along axis: signed around zero, or unsigned with a zero point each.

    A zero or tiny slice keeps a positive scale.
    """
    others = tuple(a for a in range(weight.ndim) if a != axis)
    scale, zero = _min_max(weight.min(others), weight.max(others), bits, symmetric)
    return Encoding(bits, symmetric, scale, zero, axis)


def per_block(weight: npt.NDArray[np.floating], axis: int, block: int, bits: int, symmetric: bool = True) -> Encoding:
    """Like per_channel, with a float scale for each block of `block` elements along axis.

    Raises:
        EdgeForgeError: block does not divide the axis.
    """
    blocks = _blocks(weight, axis, block)
    scale, zero = _min_max(blocks.min(axis + 1), blocks.max(axis + 1), bits, symmetric)
    return Encoding(bits, symmetric, scale, zero, axis, block)


def lpbq(weight: npt.NDArray[np.floating], axis: int, block: int, bits: int = 4) -> Encoding:
    """Low-power blockwise grid: blocks of `block` inputs, whole-number scales 1..2^bits on a float scale an output.

    A block's own scale is max(max/7, -min/8) for 4 bits; the channel's is the largest of its blocks' over 2^bits, so
    that the largest whole number is 2^bits (AIMET's "grouped blockwise" min-max grid; ExecuTorch's LPBQ).

    Args:
        axis: output channels, as in per_channel. Blocks run along `input_axis(rank, axis)`.

    Raises:
        EdgeForgeError: block does not divide the inputs.
    """
    inputs, top = input_axis(weight.ndim, axis), 1 << bits
    blocks = _blocks(weight, inputs, block)
    high, low = blocks.max(inputs + 1), blocks.min(inputs + 1)
    own = np.maximum(np.maximum(high / (top // 2 - 1), low / -(top // 2)), top * _FLOOR)
    others = tuple(a for a in range(own.ndim) if a != axis)
    scale = (own.max(others) / top).astype(np.float32)
    whole = np.clip(np.rint(own / np.expand_dims(scale, others)), 1, top).astype(np.int64)
    return Encoding(bits, True, scale, np.zeros(whole.shape, np.int64), inputs, block, whole, axis)


def input_axis(rank: int, axis: int) -> int:
    """The axis of a product's inputs beside that of its outputs: Conv [O, I, ..] 1, MatMul [.., I, O] the last but
    one."""
    return axis - 1 if axis == rank - 1 else axis + 1


def _blocks(weight: npt.NDArray[np.floating], axis: int, block: int) -> npt.NDArray[np.floating]:
    """[.., n, ..] -> [.., n / block, block, ..]."""
    size = weight.shape[axis]
    if size % block:
        raise EdgeForgeError(f"blocks of {block} do not divide {size} elements", "take smaller blocks, or per channel")
    return weight.reshape(*weight.shape[:axis], size // block, block, *weight.shape[axis + 1:])


def _min_max(low: npt.NDArray[np.floating], high: npt.NDArray[np.floating], bits: int,
             symmetric: bool) -> tuple[Floats, Ints]:
    """Scales and zero points that hold low..high and zero."""
    low, high, levels = np.minimum(low, 0), np.maximum(high, 0), (1 << bits) - 1
    if symmetric:
        scale = np.maximum(np.maximum(-low, high) / (levels // 2), _FLOOR).astype(np.float32)
        return scale, np.zeros(scale.shape, np.int64)
    scale = np.maximum((high - low) / levels, _FLOOR).astype(np.float32)
    return scale, np.clip(np.rint(-low / scale), 0, levels).astype(np.int64)


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

    def take(self, name: str, axis: int, start: int, stop: int) -> Encoding | None:
        """The encoding of a slice of name's value (see Encoding.take); None when it has none.

        Raises:
            EdgeForgeError: a cut through a block; says of which tensor.
        """
        encoding = self._entries.get(name)
        try:
            return encoding.take(axis, start, stop) if encoding is not None else None
        except EdgeForgeError as error:
            raise EdgeForgeError(f"{name}: {error.message}", error.hint) from error

    def set(self, name: str, encoding: Encoding) -> None:
        """Adds an entry; a second, different one under the same name breaks the law and is an error."""
        have = self._entries.get(name)
        if have is not None and not equal(have, encoding):
            raise EdgeForgeError(f"two encodings for {name}",
                                 "one value has one grid; insert a Requantize node")
        self._entries[name] = encoding

    def save(self, path: Path) -> None:
        """Writes the table as JSON; float32 scales survive exactly."""
        path.write_text(json.dumps({n: dump(e) for n, e in sorted(self._entries.items())}), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Table:
        try:
            raw = read_json(path)
            if not isinstance(raw, dict):
                raise ValueError(f"it holds a {type(raw).__name__}")
            return cls({name: parse(entry) for name, entry in raw.items()})
        except (OSError, ValueError, KeyError) as error:
            raise EdgeForgeError(f"{path} is not an encoding table: {error}") from error
