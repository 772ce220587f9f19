"""Any AutoModelForCausalLM as one function of ids, mask, RoPE rows and KV cache.

No code per model: attention, cache and rotary embedding are replaced through transformers' own seams.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from edgeforge.adapt import attention, kv, linear, shape
from edgeforge.errors import UnsupportedError
from edgeforge.targets import Profile


class RotaryInput(nn.Module):
    """Stands where model.rotary_emb stood and hands on the cos/sin rows that the graph was given."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        """by layer type; "" for all"""

    def forward(self, x: torch.Tensor, position_ids: Any = None, layer_type: str = "",
                **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if layer_type not in self.rows:
            raise UnsupportedError(f"the model asks for RoPE rows of layers of type {layer_type!r}",
                                   "one RoPE table for all layers, or one a layer type, is supported")
        return self.rows[layer_type]


class DecoderGraph(nn.Module):
    """forward(input_ids [1, S], attention_mask [1, 1, S, P+S], cos and sin [1, 1, S, d/2], *past).

    past is key, value per layer in the profile's layout, behind cos and sin of the sliding layers where these
    have a table of their own. Returns logits [1, S, vocab] and the new key, value per layer.

    Attributes:
        position: what the model is told its tokens' positions are. RoPE comes in as rows, so nothing may
            depend on it; export checks that.
    """

    position = 0

    def __init__(self, model: nn.Module, profile: Profile) -> None:
        super().__init__()
        self.model = model
        self._profile = profile
        self._rotary = RotaryInput()
        base = getattr(model, "model", None)
        if not hasattr(base, "rotary_emb"):
            kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
            raise UnsupportedError(f"{kind}: no rotary embedding at model.rotary_emb",
                                   "decoder-only models with rotary positions are supported")
        self._layers = list(shape.rotary_inputs(model.config))
        base.rotary_emb = self._rotary  # type: ignore[union-attr]
        model.set_attn_implementation(attention.use(profile))  # type: ignore[operator]
        if profile.linear == "conv1x1":
            linear.linears_to_conv(model)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, cos: torch.Tensor,
                sin: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = (cos, sin, *past)
        past = rows[2 * len(self._layers):]
        self._rotary.rows = {layers: (_whole(rows[2 * i]), _whole(rows[2 * i + 1]))
                             for i, layers in enumerate(self._layers)}
        cache = kv.GraphCache(list(zip(past[::2], past[1::2], strict=True)), self._profile)
        positions = torch.full_like(input_ids, self.position)
        logits = self.model(input_ids=input_ids, attention_mask=attention_mask, cache=cache,
                            position_ids=positions, use_cache=True).logits
        if list(cache.new) != list(range(len(past) // 2)):
            raise UnsupportedError(f"layers {list(cache.new)} keep keys and values, of {len(past) // 2}",
                                   "every layer must have a cache of its own")
        return (logits, *(t for pair in cache.new.values() for t in pair))


def _whole(rows: torch.Tensor) -> torch.Tensor:
    """[1, 1, S, d/2] -> [1, S, d], as a model's own rotary module gives them."""
    return torch.cat([rows, rows], -1).squeeze(1)
