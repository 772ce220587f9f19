"""A window of tokens as the inputs of a decoder's float graph, all at once and without a past."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from edgeforge_runtime.manifest import IDS, MASK
from edgeforge_runtime.rope import Tables

from edgeforge.adapt.shape import Decoder


def feeds(decoder: Decoder, ids: npt.NDArray[np.int64], tables: Tables) -> Mapping[str, torch.Tensor]:
    """Inputs by name for ids [tokens]."""
    length = len(ids)
    shapes = decoder.shapes(length, length)
    found = {name: torch.zeros(shapes[name]) for name in decoder.input_names() if name not in (IDS, MASK, *tables)}
    mask = np.where(np.tri(length, dtype=bool), 0.0, decoder.masked).astype(np.float32)
    return found | {
        IDS: torch.from_numpy(ids.astype(np.int32))[None], MASK: torch.from_numpy(mask)[None, None],
        **{name: torch.from_numpy(table[:length].copy()).reshape(shapes[name]) for name, table in tables.items()}}
