"""Token ids, mask and rotary tables for one call of a graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .codes import Array, encode
from .manifest import IDS, MASK, WRITE, Graph, Model, Tensor
from .rope import Tables


class Feeder:
    """Builds everything that a graph takes beside the cache, bit for bit as Qualcomm's Genie does.

    Genie rounds rotary tables down, so they are here too (checked on the emulator over all inputs and
    outputs of six calls: with floor nothing differs, with the nearest code logits move by up to 167 codes).

    Args:
        tables: rotary tables by the input that takes rows of one.
    """

    def __init__(self, model: Model, tables: Tables) -> None:
        self._model = model
        self._tables = tables
        self._coded: dict[tuple[str, str, float | None, int], Array] = {}

    def feeds(self, graph: Graph, tokens: Sequence[int], past: int, first: int) -> dict[str, Array]:
        """Feeds for `tokens` at positions past.., in rows first.. of the graph's AR rows.

        Past tokens are columns 0..past-1 of the mask, row r of the graph is column CL - AR + r; past + r where the
        graph writes into a cache that it keeps, a slot a position. Rows
        without a token are wholly forbidden (the mask is bounded, so they stay finite), hold the
        padding id and position 0; nobody reads what comes of them.
        """
        inputs, _ = graph.boundary()
        ids = np.full((1, graph.ar), self._model.pad, inputs[IDS].dtype)
        ids[0, first : first + len(tokens)] = tokens
        rope = {name: self._rotary(inputs[name], past, first, len(tokens)) for name in self._tables if name in inputs}
        slot = {WRITE: np.array([past], inputs[WRITE].dtype)} if WRITE in inputs else {}
        column = past if slot else graph.cl - graph.ar
        return {IDS: ids, MASK: self._mask(inputs[MASK], past, first, len(tokens), column), **rope, **slot}

    def _mask(self, tensor: Tensor, past: int, first: int, count: int, column: int) -> Array:
        """column: of the graph's row 0."""
        allowed, forbidden = encode(tensor, [0.0, self._model.masked])
        mask = np.full(tensor.shape, forbidden)
        rows = mask[0, 0, first : first + count]
        rows[:, :past] = allowed
        column += first
        rows[:, column : column + count][np.tri(count, dtype=bool)] = allowed
        return mask

    def _rotary(self, tensor: Tensor, past: int, first: int, count: int) -> Array:
        key = (tensor.name, tensor.dtype, tensor.scale, tensor.zero_point)
        if key not in self._coded:
            self._coded[key] = encode(tensor, self._tables[tensor.name], np.floor)
        table = self._coded[key]
        rows = np.repeat(table[:1], tensor.shape[-2], axis=0)
        rows[first : first + count] = table[past : past + count]
        return rows.reshape(tensor.shape)
