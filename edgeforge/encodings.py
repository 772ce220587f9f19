"""The table of encodings: one value, one grid, keyed by the value's name.

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

from edgeforge.encoding import Encoding, Floats, equal
from edgeforge.encoding_json import dump, parse
from edgeforge.errors import EdgeForgeError

__all__ = ["FILE", "Encoding", "Floats", "Table", "equal", "per_tensor", "reals"]

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
