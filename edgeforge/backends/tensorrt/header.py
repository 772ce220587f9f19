"""The 64 bytes that an RTX engine begins with, which can be read where the engine cannot.

Found by comparing engines of TensorRT-RTX 1.4 to 1.7 built for different GPUs: `vtrt`, the file's size (u64 at 16), the
version (a byte each at 24), a mask of GPUs (u32 at 32).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from edgeforge.errors import CompilerError

SIZE = 64
_MAGIC = b"vtrt"
_BITS = {"SM75": 0x1, "SM80": 0x2, "SM86": 0x4, "SM89": 0x8, "SM120": 0x10, "SM121": 0x20}


@dataclass(frozen=True)
class Header:
    """compute: TensorRT's names of the GPUs that it runs on."""

    version: str
    compute: tuple[str, ...]


def is_rtx(path: Path) -> bool:
    """Does it begin as TensorRT-RTX's engines do? OSError: it cannot be read."""
    with path.open("rb") as source:
        return source.read(len(_MAGIC)) == _MAGIC


def read(path: Path) -> Header:
    """CompilerError: not an engine of TensorRT-RTX, or truncated."""
    try:
        with path.open("rb") as source:
            head = source.read(SIZE)
        size = path.stat().st_size
    except OSError as error:
        raise CompilerError(f"{path}: {error.strerror}") from error
    if len(head) < SIZE or not head.startswith(_MAGIC):
        raise CompilerError(f"{path} is not a TensorRT-RTX engine", "it begins with 'vtrt'; a .engine of enterprise "
                            "TensorRT can only be read by the TensorRT that built it")
    (stated,), (mask,) = struct.unpack_from("<Q", head, 16), struct.unpack_from("<I", head, 32)
    if stated > size:
        raise CompilerError(f"{path} is truncated: {size:,} bytes of {stated:,}", "copy it again")
    return Header(".".join(map(str, head[24:28])), tuple(n for n, bit in _BITS.items() if mask & bit))
