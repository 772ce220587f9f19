"""The header of a GGUF file, read with every length checked against the file's.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The `gguf` package reads it too, by mapping
the file and trusting what the header says; here nothing is trusted, and strings of the vocabulary are skipped.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from edgeforge.errors import CheckpointError

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMS, _MAX_NAME, _MAX_TEXT = 4, 1 << 16, 1 << 26
_AGAIN = "download it again"


@dataclass(frozen=True)
class RawTensor:
    """An entry of the tensor table: dims fastest first, offset in bytes from the data's start."""

    name: str
    dims: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True)
class Header:
    """metadata: keys to values (arrays of strings as their length); data: where tensor data begins, bytes."""

    version: int
    metadata: dict[str, Any]
    tensors: tuple[RawTensor, ...]
    data: int


def read(file: Path) -> Header:
    """The header alone; no tensor data is read.

    Raises:
        CheckpointError: another format or version, cut off, or lengths that the file doesn't have.
    """
    with file.open("rb") as raw:
        reader = _Reader(file, raw)
        if (magic := raw.read(4)) != _MAGIC:
            raise CheckpointError(f"{file} is no GGUF file: it begins with {magic!r}", "give a folder or a .gguf file")
        version = reader.number("I")
        if version not in _VERSIONS:
            raise CheckpointError(f"{file} is GGUF version {version}; versions 2 and 3 are read",
                                  "convert the model again with a current llama.cpp")
        tensors, keys = reader.number("Q"), reader.number("Q")
        reader.expect(tensors * 24 + keys * 13, f"{tensors} tensors and {keys} keys")  # the shortest they can be
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            name = reader.string(_MAX_NAME)
            if name in metadata:
                raise CheckpointError(f"{file} has the key {name!r} twice", _AGAIN)
            metadata[name] = reader.value(reader.number("I"))
        table = tuple(_entry(reader) for _ in range(tensors))
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise CheckpointError(f"{file}: general.alignment {alignment!r} is no power of two", _AGAIN)
        return Header(version, metadata, table, -(-raw.tell() // alignment) * alignment)


def _entry(reader: _Reader) -> RawTensor:
    name, count = reader.string(_MAX_NAME), reader.number("I")
    if count > _MAX_DIMS:
        raise CheckpointError(f"{reader.file}: {name} has {count} dimensions; GGUF has at most {_MAX_DIMS}", _AGAIN)
    dims = tuple(reader.number("Q") for _ in range(count))
    return RawTensor(name, dims, reader.number("I"), reader.number("Q"))


class _Reader:
    """Little-endian values, one behind the other."""

    def __init__(self, file: Path, raw: BinaryIO) -> None:
        self.file, self._raw, self._size = file, raw, file.stat().st_size

    def expect(self, count: int, what: str) -> None:
        """Refuses a length that the rest of the file doesn't have."""
        if count > self._size - self._raw.tell():
            raise CheckpointError(
                f"{self.file} ({self._size} bytes) is truncated or damaged: its header claims {what} at byte "
                f"{self._raw.tell()}", _AGAIN)

    def number(self, code: str) -> Any:
        (value,) = self._numbers(code, 1)
        return value

    def string(self, limit: int) -> str:
        length = self.number("Q")
        self.expect(length, f"a text of {length} bytes")
        if length > limit:
            raise CheckpointError(f"{self.file} has a text of {length} bytes at byte {self._raw.tell()}", _AGAIN)
        try:
            return self._raw.read(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.file} has a text that is not UTF-8: {error}", _AGAIN) from error

    def value(self, kind: int) -> Any:
        """One metadata value; an array of strings as its length."""
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.string(_MAX_TEXT)
        if kind != _ARRAY:
            raise CheckpointError(f"{self.file} has metadata of the unknown type {kind}", _AGAIN)
        kind, count = self.number("I"), self.number("Q")
        if kind in _SCALARS:
            return list(self._numbers(_SCALARS[kind], count))
        if kind != _STRING:
            raise CheckpointError(f"{self.file} has a metadata array of the unknown type {kind}", _AGAIN)
        self.expect(8 * count, f"an array of {count} texts")
        for _ in range(count):
            length = self.number("Q")
            self.expect(length, f"a text of {length} bytes")
            self._raw.seek(length, 1)
        return count

    def _numbers(self, code: str, count: int) -> tuple[Any, ...]:
        size = struct.calcsize(code) * count
        self.expect(size, f"{size} bytes")
        return struct.unpack(f"<{count}{code}", self._raw.read(size))
