"""The compressed forms of a constant, expanded as the opset of iOS 18 defines them (`constexpr_*`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeforge.errors import UnsupportedError

Array = npt.NDArray[Any]
Arguments = Mapping[str, Array]


def expand(kind: str, given: Arguments) -> tuple[Array, ...]:
    """What a constexpr op of that type makes of its arguments."""
    if kind not in _KINDS:
        raise UnsupportedError(f"{kind} is not expanded here", f"these are: {', '.join(sorted(_KINDS))}")
    return _KINDS[kind](given)


def _spread(small: Array, shape: tuple[int, ...]) -> Array:
    """One number a block for every element."""
    for axis, size in enumerate(shape):
        small = small.repeat(size // small.shape[axis], axis)
    return small


def _shift_scale(given: Arguments) -> tuple[Array, ...]:
    """(data - offset) * scale, in the scale's own type."""
    data, scale, offset = given["data"], given["scale"], given.get("offset")
    codes = data.astype(np.float32)
    if offset is not None:
        codes = codes - _spread(offset, data.shape).astype(np.float32)
    return ((codes * _spread(scale, data.shape).astype(np.float32)).astype(scale.dtype),)


def _entries(codes: Array, tables: Array, axis: int | None) -> Array:
    """The entries (vectors along axis when they are longer than 1) of tables [block of each axis.., entry, vector]."""
    blocks = tables.shape[:-2]
    place = tuple(np.arange(size).reshape([-1 if a == b else 1 for b in range(codes.ndim)]) * blocks[a] // size
                  for a, size in enumerate(codes.shape))
    found = tables[(*place, codes.astype(np.int64))]
    if axis is None or found.shape[-1] == 1:
        return np.asarray(found[..., 0])
    moved = np.moveaxis(found, -1, axis + 1)
    return moved.reshape([s * found.shape[-1] if a == axis else s for a, s in enumerate(codes.shape)])


def _lut(given: Arguments) -> tuple[Array, ...]:
    axis = given.get("vector_axis")
    return (_entries(given["indices"], given["lut"], None if axis is None else int(axis) % given["indices"].ndim),)


def _scatter(values: Array, mask: Array) -> Array:
    made = np.zeros(mask.shape, values.dtype)
    made[mask.astype(bool)] = values
    return made


def _sparse(given: Arguments) -> tuple[Array, ...]:
    """Values at the ones of a mask, in order; zero elsewhere."""
    return (_scatter(given["nonzero_data"], given["mask"]),)


def _lut_sparse(given: Arguments) -> tuple[Array, ...]:
    """Of vectors of length 1: the mask, and the entries at its ones."""
    mask = given["indices_mask"]
    whole = _entries(_scatter(given["indices_nonzero_data"], mask), given["lut"], None)
    return mask, whole[mask.astype(bool)]


def _shift_scale_sparse(given: Arguments) -> tuple[Array, ...]:
    mask = given["data_mask"]
    whole = {"data": _scatter(given["nonzero_data"], mask), **{k: given[k] for k in ("scale", "offset") if k in given}}
    return mask, _shift_scale(whole)[0][mask.astype(bool)]


_KINDS: dict[str, Callable[[Arguments], tuple[Array, ...]]] = {
    "constexpr_blockwise_shift_scale": _shift_scale, "constexpr_lut_to_dense": _lut,
    "constexpr_sparse_to_dense": _sparse, "constexpr_lut_to_sparse": _lut_sparse,
    "constexpr_sparse_blockwise_shift_scale": _shift_scale_sparse}
