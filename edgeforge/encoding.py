"""One grid: scale, zero point, and along which axis they change.

real = (code - zero_point) * scale, as in ONNX QuantizeLinear; a code of E4M3 counts as the number that it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeforge import float8
from edgeforge.errors import EdgeForgeError

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

TOP = 16
"""largest whole-number block scale of LPBQ, whose codes have 4 bits: the channel's float scale is a sixteenth of its
largest block's step"""


@dataclass(frozen=True)
class Encoding:
    """An integer grid, or one of E4M3 numbers.

    scale and zero_point have shape () per tensor, [C] per channel along `axis`, or the blocked shape
    (the tensor's with `axis` divided by `block`) per block. LPBQ adds `block_scale`: integers 1..TOP in the blocked
    shape, while scale stays [C] along `channel`; a block's step is block_scale * scale.
    e4m3: codes are the bit patterns of 8-bit floats (float8.py), zero_point is 0.
    """

    bits: int
    signed: bool
    scale: Floats
    zero_point: Ints
    axis: int | None = None
    block: int | None = None
    block_scale: Ints | None = None
    channel: int | None = None
    e4m3: bool = False

    @property
    def low(self) -> int:
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def high(self) -> int:
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1

    @property
    def dtype(self) -> str:
        """ONNX/numpy name of the code's type."""
        if self.e4m3:
            return float8.NAME
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
        if self.e4m3:
            return float8.codes(np.asarray(array, np.float32) / scale)
        codes = np.rint(np.asarray(array, np.float32) / scale) + zero
        clipped: Ints = np.clip(codes, self.low, self.high).astype(np.int64)
        return clipped

    def dequantize(self, codes: npt.NDArray[np.integer]) -> Floats:
        """Reals of a code array, in float32 as onnxruntime computes them."""
        scale, zero = self._grid(codes.shape)
        if self.e4m3:
            return (float8.reals(codes) * scale).astype(np.float32)
        return ((codes.astype(np.int64) - zero).astype(np.float32) * scale).astype(np.float32)

    def take(self, axis: int, start: int, stop: int) -> Encoding:
        """The encoding of tensor.take(range(start, stop), axis); a per-tensor grid is its own slice.

        Raises:
            EdgeForgeError: a cut through a block.
        """
        if self.block is not None:
            return self._take_blocks(axis, start, stop, self.block)
        if self.scale.ndim == 0 or self.axis != axis:
            return self
        return replace(self, scale=self.scale[start:stop], zero_point=self.zero_point[start:stop])

    def _take_blocks(self, axis: int, start: int, stop: int, block: int) -> Encoding:
        """Along the blocks' axis whole blocks go; along every other one the arrays have the tensor's own size."""
        if axis == self.axis:
            if start % block or stop % block:
                raise EdgeForgeError(f"elements {start} to {stop} of axis {axis} cut through a block of {block}",
                                     f"cut at multiples of {block}, or take smaller blocks (`quantize.block`)")
            start, stop = start // block, stop // block
        place = (slice(None),) * axis + (slice(start, stop),)
        taken = replace(self, zero_point=self.zero_point[place])
        if self.block_scale is None:
            return replace(taken, scale=self.scale[place])
        scale = self.scale[start:stop] if axis == self.channel else self.scale
        return replace(taken, scale=scale, block_scale=self.block_scale[place])

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


def equal(a: Encoding, b: Encoding) -> bool:
    """Same grid, to the last bit."""
    def same(x: Any, y: Any) -> bool:
        return (x is None) == (y is None) and (x is None or np.array_equal(x, y))
    plain = (a.bits, a.signed, a.axis, a.block, a.channel, a.e4m3) == (
        b.bits, b.signed, b.axis, b.block, b.channel, b.e4m3)
    arrays = ((a.scale, b.scale), (a.zero_point, b.zero_point), (a.block_scale, b.block_scale))
    return plain and all(same(x, y) for x, y in arrays)


def check(e: Encoding) -> None:
    """What the arithmetic above takes for granted; ValueError says what does not hold."""
    blocked = e.scale if e.block_scale is None else e.block_scale
    if not (np.isfinite(e.scale).all() and (e.scale > 0).all()):
        raise ValueError("a scale is not finite and above 0")
    if not ((e.zero_point >= e.low) & (e.zero_point <= e.high)).all():
        raise ValueError(f"a zero point is not on the grid {e.low}..{e.high}")
    if e.e4m3 and (e.bits != 8 or not e.signed or e.zero_point.any()):
        raise ValueError("E4M3 is signed, has 8 bits, and no zero point")
    if e.block_scale is not None and e.bits != 4:
        raise ValueError(f"whole-number block scales are for codes of 4 bits, not {e.bits}")
    if e.block_scale is not None and not ((e.block_scale >= 1) & (e.block_scale <= TOP)).all():
        raise ValueError(f"a block's scale is not within 1..{TOP}")
    wanted = 0 if e.axis is None else 1 if e.block is None else blocked.ndim
    if blocked.ndim != wanted or blocked.shape != e.zero_point.shape or (e.block is None) > (e.block_scale is None):
        raise ValueError(f"scales {list(blocked.shape)} and zero points {list(e.zero_point.shape)} do not fit axis "
                         f"{e.axis}, block {e.block}")
    if e.block is not None and not 0 <= (e.axis or 0) < blocked.ndim:
        raise ValueError(f"blocks {list(blocked.shape)} have no axis {e.axis}")
    if e.block_scale is not None and e.scale.shape != e.block_scale.shape[e.channel : _known(e.channel) + 1]:
        needed = ", ".join(map(str, e.block_scale.shape[e.channel : _known(e.channel) + 1]))
        raise ValueError(f"scales: {e.scale.size} where {needed} are needed, one a channel (axis {e.channel} of blocks "
                         f"{list(blocked.shape)})")


def input_axis(rank: int, axis: int) -> int:
    """The axis of a product's inputs beside that of its outputs: Conv [O, I, ..] 1, MatMul [.., I, O] the last but
    one."""
    return axis - 1 if axis == rank - 1 else axis + 1


def expansion(steps: Floats, channel: int) -> Ints:
    """The whole-number block scales that a compiler finds in plain ones: each channel's largest stands for TOP.

    It rounds what lies between, so any other grid would come out changed, and nobody told.

    Args:
        steps: blocked, see Encoding.

    Raises:
        ValueError: a step that is no whole number, 1..TOP, of its channel's largest over TOP.
    """
    others = tuple(a for a in range(steps.ndim) if a != channel)
    unit = steps.max(others, keepdims=True) / np.float32(TOP)
    whole = np.rint(steps / unit)
    wrong = np.argwhere(((whole * unit).astype(np.float32) != steps) | (whole < 1))
    if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        units = float((steps / unit)[at])
        raise ValueError(f"the step of block {list(at)} is {units:.4f} of its channel's units, "
                         f"no whole number from 1 to {TOP}")
    found: Ints = whole.astype(np.int64)
    return found


def _known(axis: int | None) -> int:
    if axis is None:
        raise ValueError("the encoding has no axis")
    return axis
