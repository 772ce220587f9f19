"""How far a model's mask has to lower a forbidden score: below every allowed one, and no further, for on an integer
grid scores and mask share the codes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from edgeforge.errors import UnsupportedError
from edgeforge.targets import Profile

_NAME = "edgeforge_spread"
_CLEAR = 16.0
"""how far below the best score a forbidden one has to lie: e^-16 is what float32 still sees beside 1"""
_MORE, _STEP = 1.25, 50.0
"""text that was not seen may spread scores wider: Qwen2.5-Coder-0.5B's lay 445 apart in one window and more than 484 in
the next"""


def spread(model: Any, windows: Iterable[npt.NDArray[np.int64]]) -> float:
    """How far a forbidden score lies above the best allowed one of its row, at most, when windows [tokens] are read.

    Forbidden are the tokens that come later, and empty cache slots, whose score is 0: beside a key bias as large as
    Qwen2's, that may be hundreds above what is allowed. Leaves the model with an attention of its own.
    """
    found = [0.0]

    def attend(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
               attention_mask: torch.Tensor | None, scaling: float, softcap: float | None = None,
               **kwargs: Any) -> tuple[torch.Tensor, None]:
        group, width = query.shape[1] // key.shape[1], query.shape[2]
        later = torch.ones(width, width, dtype=torch.bool).triu(1)
        mixed = torch.empty(*query.shape[:3], value.shape[-1])
        for head in range(query.shape[1]):  # one at a time: all of a long context's scores are gigabytes
            scores = query[0, head] @ key[0, head // group].T * scaling
            if softcap is not None:
                scores = torch.tanh(scores / softcap) * softcap
            allowed = scores.masked_fill(later, -torch.inf)
            forbidden = scores.masked_fill(~later, 0.0).amax(-1)
            found.append(float((forbidden.clamp_min(0) - allowed.amax(-1)).max()))
            mixed[0, head] = torch.softmax(allowed, -1) @ value[0, head // group]
        return mixed.transpose(1, 2), None

    AttentionInterface.register(_NAME, attend)
    AttentionMaskInterface.register(_NAME, lambda *args, **kwargs: None)
    model.set_attn_implementation(_NAME)
    with torch.no_grad():
        for ids in windows:
            model(input_ids=torch.from_numpy(ids)[None], use_cache=False)
    return float(np.max(found))  # which NaN survives


def depth(above: float, profile: Profile) -> float:
    """What the mask adds to a forbidden score: the profile's own, or where scores are spread wider, more of it.

    Args:
        above: see spread.

    Raises:
        UnsupportedError: above is not finite: the model's scores are not.
    """
    if not math.isfinite(above):
        raise UnsupportedError("the model's attention scores are NaN or infinite", "is a weight damaged?")
    if above + _CLEAR <= -profile.masked:
        return profile.masked
    return -_STEP * math.ceil((_MORE * above + _CLEAR) / _STEP)
