"""Eager attention in the shapes that compilers like, through transformers' attention seam.

The query is folded to [kv, group, S, head_dim] and the keys to [kv, 1, head_dim, T], so grouped-query
attention is a broadcast matrix product: no head is ever repeated, and head h reads key head h // group.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from edgeforge.errors import UnsupportedError
from edgeforge.targets import Profile

_NAME = "edgeforge_{}"
_HARMLESS = {"dropout", "is_causal", "sliding_window", "position_ids", "use_cache", "cache_position",
             "output_attentions", "output_hidden_states", "logits_to_keep"}
"""what modules hand to attention that changes nothing here: shape.py has checked the windows"""


def use(profile: Profile) -> str:
    """Registers the profile's attention with transformers and returns its name."""
    name = _NAME.format(profile.name)

    def attend(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
               attention_mask: torch.Tensor | None, **kwargs: Any) -> tuple[torch.Tensor, None]:
        return _attend(profile, query, key, value, attention_mask, **kwargs), None

    AttentionInterface.register(name, attend)
    # Without a mask function of its own name, transformers hands the attention no mask at all.
    AttentionMaskInterface.register(name, lambda *args, **kwargs: None)
    return name


def _attend(profile: Profile, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
            mask: torch.Tensor | None, scaling: float, softcap: float | None = None,
            **more: Any) -> torch.Tensor:
    """query [1, heads, S, d]; key and value in the cache's layout; returns [1, S, heads, d]."""
    strange = sorted(k for k, v in more.items() if v is not None and k not in _HARMLESS)
    if strange:
        raise UnsupportedError(f"the model's attention also takes {', '.join(strange)}", "it would be ignored")
    if mask is None:
        raise ValueError("the model built its own mask; the graph's mask input was not used")
    _, heads, width, depth = query.shape
    if not profile.transposed_keys:
        key, value = key.permute(1, 0, 3, 2), value.permute(1, 0, 2, 3)
    kv = key.shape[0]
    # Scaling the query, not the scores: it folds into the projection, and S*d is smaller than S*T.
    query = (query * scaling).reshape(kv, heads // kv, width, depth)
    scores = torch.matmul(query, key)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    weights = torch.softmax(scores + mask, dim=-1)
    mixed = torch.matmul(weights, value)
    return mixed.reshape(1, heads, width, value.shape[-1]).transpose(1, 2)
