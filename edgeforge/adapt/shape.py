"""The sizes that a decoder's graph contract needs, read from its config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from edgeforge.errors import UnsupportedError
from edgeforge.targets import Profile


@dataclass(frozen=True)
class Decoder:
    """Sizes of one decoder under one profile; tensor shapes follow from them."""

    model_type: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    rotary: int
    """rotated dimensions per head (all of head_dim, or fewer with partial rotary)"""
    profile: Profile

    def key(self, past: int) -> tuple[int, int, int, int]:
        if self.profile.transposed_keys:
            return (self.kv_heads, 1, self.head_dim, past)
        return (1, self.kv_heads, past, self.head_dim)

    def value(self, past: int) -> tuple[int, int, int, int]:
        if self.profile.transposed_keys:
            return (self.kv_heads, 1, past, self.head_dim)
        return (1, self.kv_heads, past, self.head_dim)

    def input_names(self) -> list[str]:
        return ["input_ids", "attention_mask", "position_ids_cos", "position_ids_sin",
                *(f"past_{kind}_{i}_in" for i in range(self.layers) for kind in ("key", "value"))]

    def output_names(self) -> list[str]:
        return ["logits", *(f"past_{kind}_{i}_out" for i in range(self.layers) for kind in ("key", "value"))]

    def shapes(self, ar: int, cl: int) -> dict[str, tuple[int, ...]]:
        """Every graph input's and output's shape at one width."""
        past = cl - ar
        rows: dict[str, tuple[int, ...]] = {
            "input_ids": (1, ar), "attention_mask": (1, 1, ar, cl),
            "position_ids_cos": (1, 1, ar, self.rotary // 2), "position_ids_sin": (1, 1, ar, self.rotary // 2),
            "logits": (1, ar, self.vocab)}
        for i in range(self.layers):
            rows |= {f"past_key_{i}_in": self.key(past), f"past_value_{i}_in": self.value(past),
                     f"past_key_{i}_out": self.key(ar), f"past_value_{i}_out": self.value(ar)}
        return rows

    def example(self, ar: int, past: int) -> tuple[torch.Tensor, ...]:
        """Example arguments of DecoderGraph.forward."""
        shapes = self.shapes(ar, ar + past)
        ids = torch.zeros(shapes["input_ids"], dtype=torch.int32)
        return (ids, *(torch.zeros(shapes[name]) for name in self.input_names()[1:]))


def decoder(config: Any, profile: Profile) -> Decoder:
    """Reads a transformers config; UnsupportedError names what is missing or not uniform."""
    kind = str(getattr(config, "model_type", "?"))
    heads = getattr(config, "num_attention_heads", None)
    if not isinstance(heads, int):
        raise UnsupportedError(f"{kind}: config has no num_attention_heads", "only text decoders are supported")
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    rope = getattr(config, "rope_parameters", None) or {}
    share = rope.get("partial_rotary_factor", 1.0) if isinstance(rope, dict) else 1.0
    return Decoder(kind, config.num_hidden_layers, heads, getattr(config, "num_key_value_heads", None) or heads,
                   head_dim, config.hidden_size, config.vocab_size, int(head_dim * share), profile)
