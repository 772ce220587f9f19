"""weight.bin: a 64-byte header, then for each blob a 64-byte record and its bytes, all aligned to 64 bytes.

Source: mlmodel/src/MILBlob/Blob/StorageFormat.hpp of apple/coremltools.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgeforge.errors import EdgeForgeError

_SENTINEL, _VERSION, _HEADER = 0xDEADBEEF, 2, 64
_RECORD = np.dtype([("sentinel", "<u4"), ("type", "<u4"), ("bytes", "<u8"), ("offset", "<u8"), ("spare", "<u8")])


class Blobs:
    """The blobs of one file, by the offset of their records."""

    def __init__(self, path: Path) -> None:
        self._path = path
        long_enough = path.is_file() and path.stat().st_size >= _HEADER
        self._raw = np.memmap(path, np.uint8, "r") if long_enough else np.empty(0, np.uint8)
        version = int(self._raw[4:8].view("<u4")[0]) if long_enough else -1
        if version != _VERSION:
            raise EdgeForgeError(f"{path} is no file of Core ML weights, or is damaged (version {version})")

    def read(self, offset: int) -> npt.NDArray[np.uint8]:
        """The bytes of the blob whose record lies at offset."""
        record = self._raw[offset : offset + _RECORD.itemsize]
        if len(record) < _RECORD.itemsize or int(record.view(_RECORD)[0]["sentinel"]) != _SENTINEL:
            raise EdgeForgeError(f"{self._path} has no blob at byte {offset}", "the package is damaged")
        start, size = (int(record.view(_RECORD)[0][key]) for key in ("offset", "bytes"))
        if start + size > len(self._raw):
            raise EdgeForgeError(f"{self._path} ends within the blob at byte {offset}", "the package is damaged")
        return self._raw[start : start + size]
