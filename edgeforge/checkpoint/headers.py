"""The headers of safetensors files."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path

from safetensors import SafetensorError, safe_open

from edgeforge.checkpoint.files import check_regular
from edgeforge.checkpoint.opened import TensorInfo
from edgeforge.errors import CheckpointError

_PREFIX, _MOST_HEADER = 8, 100_000_000
"""bytes: the header's length stands first; the format's own limit for it (safetensors, README, "Format")"""
_LFS = b"version https://git-lfs."


def read_header(file: Path, root: Path) -> dict[str, TensorInfo]:
    """Every tensor that the file declares. The library checks the header against the file's length: each
    dtype known, sizes right, no holes, no overlap, nothing beyond the end.

    Raises:
        CheckpointError: not a whole safetensors file.
    """
    check_regular(file, root)
    try:
        with safe_open(file, framework="numpy") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118 (not a dict)
            found = {n: TensorInfo(tuple(s.get_shape()), s.get_dtype(), file) for n, s in slices.items()}
    except PermissionError:
        raise
    except (SafetensorError, OSError, ValueError, OverflowError, MemoryError) as error:
        refuse_pointer(file)
        raise CheckpointError(f"{file} {_unlike(file) or f'is not a safetensors file: {error}'}",
                              "download it again") from error
    _refuse_twins(file)
    return found


def _unlike(file: Path) -> str:
    """How the file's length differs from what its header declares; empty when that is not what is wrong."""
    have = file.stat().st_size
    if have < _PREFIX:
        return f"is truncated: {have} bytes"
    with file.open("rb") as raw, contextlib.suppress(ValueError, AttributeError, KeyError, TypeError, IndexError,
                                                     RecursionError):
        (length,) = struct.unpack("<Q", raw.read(_PREFIX))
        if length + _PREFIX > have:
            return f"is truncated, or not a safetensors file: {have:,} bytes, its header alone would take {length:,}"
        if length <= _MOST_HEADER:
            entries = json.loads(raw.read(length))
            entries.pop("__metadata__", None)
            want = _PREFIX + length + max(int(entry["data_offsets"][1]) for entry in entries.values())
            if have < want:
                return f"is truncated: {have:,} bytes of {want:,}, {want - have:,} are missing"
            if have > want:
                return f"has {have - want:,} bytes behind its last tensor: {have:,}, its header declares {want:,}"
    return ""


def refuse_pointer(file: Path) -> None:
    """A repository that was cloned without git-lfs holds a few lines of text in place of weights."""
    with file.open("rb") as raw:
        if raw.read(len(_LFS)) == _LFS:
            raise CheckpointError(f"{file} is a git-lfs pointer, no weights", "`git lfs pull`")


def _refuse_twins(file: Path) -> None:
    """A name declared twice: the library keeps one of the two without a word."""
    with file.open("rb") as raw:
        (length,) = struct.unpack("<Q", raw.read(_PREFIX))
        objects: list[list[str]] = []
        json.loads(raw.read(length), object_pairs_hook=lambda pairs: objects.append([key for key, _ in pairs]))
    names = objects[-1]  # the outer object closes last
    if len(set(names)) != len(names):
        twice = next(n for i, n in enumerate(names) if n in names[:i])
        raise CheckpointError(f"{file} declares {twice!r} twice", "download it again")
