"""The KV cache as graph inputs and outputs, through transformers' Cache seam."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache

from edgeforge.targets import Profile


class GraphCache(Cache):  # type: ignore[misc]
    """Attention sees past‖new; only the new keys and values leave the graph.

    past: per layer (key, value). With a transposed key cache the layouts are
    key [kv, 1, head_dim, P] and value [kv, 1, P, head_dim]; otherwise both are [1, kv, P, head_dim].
    """

    def __init__(self, past: list[tuple[torch.Tensor, torch.Tensor]], profile: Profile) -> None:
        super().__init__(layers=[])
        self._past = past
        self._profile = profile
        self.new: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any,
               **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes new key/value [1, kv, S, head_dim]; returns the concatenation in the cache's layout."""
        if self._profile.transposed_keys:
            key_states, value_states = key_states.permute(1, 0, 3, 2), value_states.permute(1, 0, 2, 3)
        self.new[layer_idx] = (key_states, value_states)
        key, value = self._past[layer_idx]
        return (torch.cat([key, key_states], self._profile.key_axis),
                torch.cat([value, value_states], self._profile.value_axis))

    def get_seq_length(self, layer_idx: int = 0, *args: Any) -> int:
        return self._past[layer_idx][1].shape[self._profile.value_axis]

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        return self.get_seq_length(), 0
