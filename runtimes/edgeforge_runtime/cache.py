"""The KV cache: one flat buffer per layer and kind, written in place.

A graph of width AR sees the past as an array with CL - AR slots along the token axis. That array is
a contiguous view of the buffer's front, so a step copies only the new tokens. Graphs with another
number of slots need other strides: the first step after such a switch moves the tokens once and is
counted in `restrides`. Where graphs take `write_index` instead, the executor keeps the tensors, and all that is here is
how many tokens they hold. Slots without a token hold the zero point, that is real 0: a masked slot
must be finite, and the byte 0 of an unsigned grid is not (C44).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import CacheOverflow
from .manifest import WRITE, Graph, Model, Tensor, past_layer

Array = npt.NDArray[Any]


class _Buffer:
    """One past_* tensor: `slots` is its length along `axis`, `size` the elements of one slot."""

    def __init__(self, tensor: Tensor, axis: int, capacity: int) -> None:
        self.axis = axis
        self.fill = np.dtype(tensor.dtype).type(tensor.zero_point)
        self._outer, self._inner = tensor.shape[:axis], tensor.shape[axis + 1 :]
        size = int(np.prod(self._outer + self._inner))
        try:
            self._flat = np.full(size * capacity, self.fill, tensor.dtype)
        except (MemoryError, ValueError, OverflowError) as error:
            raise CacheOverflow(f"no memory for {tensor.name}, {tensor.dtype}{list(tensor.shape)}: {error}") from error
        self._size = size
        self.view = self._shaped(capacity)

    def _shaped(self, slots: int) -> Array:
        return self._flat[: self._size * slots].reshape(*self._outer, slots, *self._inner)

    def window(self, start: int, stop: int) -> Array:
        return self.view[(slice(None),) * self.axis + (slice(start, stop),)]

    def restride(self, slots: int, used: int) -> None:
        kept = self.window(0, used).copy()
        self.view = self._shaped(slots)
        self.view.fill(self.fill)
        self.window(0, used)[...] = kept


class KvCache:
    """All layers' past keys and values.

    Attributes:
        length: tokens stored; they occupy slots 0..length-1 of every view.
        capacity: most tokens that fit: the longest past of any graph.
        restrides: how often a step found another slot count than its predecessor and moved the tokens.
    """

    def __init__(self, graphs: Iterable[Graph], model: Model) -> None:
        """Allocates from the graphs' declarations; graphs without past (AR = CL) have nothing to hold."""
        graphs = list(graphs)
        axes = {"key": model.key_axis, "value": model.value_axis}
        longest: dict[str, tuple[Tensor, int]] = {}
        for graph in graphs:
            for name, tensor in graph.boundary()[0].items():
                kind = past_layer(name)
                if kind is None:
                    continue
                axis = axes[kind[0]]
                if name not in longest or tensor.shape[axis] > longest[name][0].shape[axis]:
                    longest[name] = (tensor, axis)
        self.length = 0
        elsewhere = (g.cl for g in graphs if WRITE in g.boundary()[0])
        self.capacity = max((*(t.shape[axis] for t, axis in longest.values()), *elsewhere), default=0)
        self.restrides = 0
        self._slots = self.capacity
        self._buffers = {name: _Buffer(t, axis, self.capacity) for name, (t, axis) in longest.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The cache inputs of all graphs."""
        return tuple(self._buffers)

    def view(self, slots: int) -> dict[str, Array]:
        """Contiguous arrays with `slots` token slots, by input name; valid until the next call.

        Raises:
            CacheOverflow: fewer slots than tokens stored, or more than the capacity.
        """
        if not self.length <= slots <= self.capacity:
            raise CacheOverflow(
                f"{slots} slots asked of a cache with {self.length} tokens and {self.capacity} slots"
            )
        if slots != self._slots:
            for buffer in self._buffers.values():
                buffer.restride(slots, self.length)
            self.restrides += self.length > 0
            self._slots = slots
        return {name: buffer.view for name, buffer in self._buffers.items()}

    def append(self, new: dict[str, Array], first: int, count: int) -> None:
        """Stores columns first..first+count-1 of each array of `new` behind the tokens stored.

        When the current slots are too few, the tokens move to the longest layout first.

        Args:
            new: by the past input's name, the array that the graph made for it.

        Raises:
            CacheOverflow: more than `capacity` tokens.
        """
        stop = self.length + count
        if stop > self.capacity:
            raise CacheOverflow(f"{stop} tokens do not fit into a cache of {self.capacity} slots")
        if stop > self._slots:
            self.view(self.capacity)
        for name, buffer in self._buffers.items():
            fresh = new[name][(slice(None),) * buffer.axis + (slice(first, first + count),)]
            buffer.window(self.length, stop)[...] = fresh
        self.length = stop

    def rewind(self, length: int) -> None:
        """Forgets all tokens from `length` on."""
        for buffer in self._buffers.values():
            buffer.window(length, self.length)[...] = buffer.fill
        self.length = min(length, self.length)
