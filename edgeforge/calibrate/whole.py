"""A window of tokens as the inputs of a decoder's float graph, all at once and without a past."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from edgeforge_runtime.manifest import COS, IDS, MASK, SIN

from edgeforge.adapt.shape import Decoder


def feeds(decoder: Decoder, ids: npt.NDArray[np.int64], cos: npt.NDArray[np.float32],
          sin: npt.NDArray[np.float32]) -> Mapping[str, torch.Tensor]:
    """Inputs by name for ids [tokens]; cos and sin are the tables [positions, rotary / 2]."""
    length = len(ids)
    shapes = decoder.shapes(length, length)
    found = {name: torch.zeros(shapes[name]) for name in decoder.input_names() if name not in (IDS, MASK, COS, SIN)}
    mask = np.where(np.tri(length, dtype=bool), 0.0, decoder.profile.masked).astype(np.float32)
    return found | {
        IDS: torch.from_numpy(ids.astype(np.int32))[None], MASK: torch.from_numpy(mask)[None, None],
        COS: torch.from_numpy(cos[:length].copy()).reshape(shapes[COS]),
        SIN: torch.from_numpy(sin[:length].copy()).reshape(shapes[SIN])}
