"""Numbers that every machine computes alike: a 32-bit hash of a name and an index, on a grid of 2^-15."""

from __future__ import annotations

import math
import zlib

import numpy as np
import numpy.typing as npt

_GOLDEN = 0x9E3779B9


def hashes(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.uint32]:
    """h(name, i) for every element i in row-major order: crc32(name) + i * 0x9E3779B9, mixed, modulo 2^32.

    The mixing is the finalizer of MurmurHash3 (public domain): shifts by 16, 13, 16 and two multiplications.
    """
    index = np.arange(math.prod(shape), dtype=np.uint64)
    h = ((zlib.crc32(name.encode()) + index * _GOLDEN) & 0xFFFFFFFF).astype(np.uint64)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h ^= h >> np.uint64(shift)
        h = (h * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    h ^= h >> np.uint64(16)
    return h.astype(np.uint32).reshape(shape)


def reals(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """(h >> 16) / 32768 - 1: multiples of 2^-15 in [-1, 1), exact in float32."""
    return ((hashes(name, shape) >> 16).astype(np.float32) - 32768) / np.float32(32768)


def integers(name: str, shape: tuple[int, ...], low: int, high: int) -> npt.NDArray[np.int64]:
    """low + (h >> 16) modulo (high - low + 1)."""
    return low + (hashes(name, shape) >> 16).astype(np.int64) % (high - low + 1)
