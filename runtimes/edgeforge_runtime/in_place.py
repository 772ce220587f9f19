"""A cache that lives with the executor and is written in place: slot t holds token t, whatever graph wrote it.

Such a graph takes `write_index`, the slot of its first new token, and a mask whose columns are slots. No token ever
moves, so nothing is copied and nothing is restrided; the session keeps count, the executor keeps the arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from .codes import Array, Floats, encode
from .errors import CacheOverflow
from .feeds import Feeder
from .manifest import WRITE, Graph, Model, Target, Tensor


def is_in_place(target: Target) -> bool:
    """Do the target's graphs write their caches in place?"""
    return any(WRITE in graph.boundary()[0] for graph in target.graphs)


class InPlaceCache:
    """What a session knows of such a cache; the members are those of KvCache.

    Rows of a chunk that hold no token are written too, behind the last token: the next step writes over them, and until
    then the mask forbids their slots.
    """

    names: tuple[str, ...] = ()
    restrides = 0

    def __init__(self, graphs: Iterable[Graph]) -> None:
        self.length = 0
        self.capacity = min(graph.cl for graph in graphs)

    def view(self, slots: int) -> dict[str, Array]:
        """Nothing: the executor has the arrays."""
        return {}

    def append(self, new: dict[str, Array], first: int, count: int) -> None:
        """The graph has stored count tokens behind those before; CacheOverflow: more than there are slots."""
        if self.length + count > self.capacity:
            raise CacheOverflow(f"{self.length + count} tokens do not fit into a cache of {self.capacity} slots")
        self.length += count

    def rewind(self, length: int) -> None:
        """Forgets all tokens from `length` on."""
        self.length = min(length, self.length)


class InPlaceFeeder(Feeder):
    """Like Feeder, with columns of the mask that are slots, and the slot to write at."""

    def feeds(self, graph: Graph, tokens: Sequence[int], past: int, first: int) -> dict[str, Array]:
        """Row r holds token past + r; rows without a token stand behind them (first is 0)."""
        return super().feeds(graph, tokens, past, first) | {WRITE: np.array([past], np.int64)}

    def _mask(self, graph: Graph, tensor: Tensor, past: int, first: int, count: int) -> Array:
        allowed, forbidden = encode(tensor, [0.0, self._model.masked])
        mask = np.full(tensor.shape, forbidden)
        slots = np.arange(graph.cl)
        mask[0, 0, :count][slots <= past + np.arange(count)[:, None]] = allowed
        return mask


def in_place(model: Model, target: Target, cos: Floats, sin: Floats) -> tuple[InPlaceCache, InPlaceFeeder]:
    """What a session over such a target works with."""
    return InPlaceCache(target.graphs), InPlaceFeeder(model, cos, sin)
