"""The sizes that a decoder's graph contract needs, read from its config: transformers' own, or config.json as it
stands, so that a recipe can be checked before torch is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from edgeforge_runtime.manifest import COS, SIN, SWA_COS, SWA_SIN

from edgeforge.errors import UnsupportedError
from edgeforge.targets import Profile

if TYPE_CHECKING:
    import torch

_SIZES = ("num_attention_heads", "num_key_value_heads", "num_hidden_layers", "head_dim", "hidden_size", "vocab_size")
_LONGEST = 200
_FULL, _SLIDING = "full_attention", "sliding_attention"


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
    windowed_rope: bool
    """layers with sliding attention rotate by a table of their own"""
    masked: float
    """what the mask adds to a forbidden score: the profile's least, until a model's scores were seen (adapt/mask.py)"""

    def key(self, past: int) -> tuple[int, int, int, int]:
        if self.profile.transposed_keys:
            return (self.kv_heads, 1, self.head_dim, past)
        return (1, self.kv_heads, past, self.head_dim)

    def value(self, past: int) -> tuple[int, int, int, int]:
        if self.profile.transposed_keys:
            return (self.kv_heads, 1, past, self.head_dim)
        return (1, self.kv_heads, past, self.head_dim)

    def rotary_names(self) -> list[str]:
        """The inputs that are rows of a rotary table; the second pair is the sliding layers'."""
        return [COS, SIN, SWA_COS, SWA_SIN] if self.windowed_rope else [COS, SIN]

    def input_names(self) -> list[str]:
        return ["input_ids", "attention_mask", *self.rotary_names(),
                *(f"past_{kind}_{i}_in" for i in range(self.layers) for kind in ("key", "value"))]

    def output_names(self) -> list[str]:
        return ["logits", *(f"past_{kind}_{i}_out" for i in range(self.layers) for kind in ("key", "value"))]

    def shapes(self, ar: int, cl: int) -> dict[str, tuple[int, ...]]:
        """Every graph input's and output's shape at one width."""
        past = cl - ar
        rows: dict[str, tuple[int, ...]] = {
            "input_ids": (1, ar), "attention_mask": (1, 1, ar, cl),
            **dict.fromkeys(self.rotary_names(), (1, 1, ar, self.rotary // 2)), "logits": (1, ar, self.vocab)}
        for i in range(self.layers):
            rows |= {f"past_key_{i}_in": self.key(past), f"past_value_{i}_in": self.value(past),
                     f"past_key_{i}_out": self.key(ar), f"past_value_{i}_out": self.value(ar)}
        return rows

    def example(self, ar: int, past: int) -> tuple[torch.Tensor, ...]:
        """Example arguments of DecoderGraph.forward."""
        import torch

        shapes = self.shapes(ar, ar + past)
        ids = torch.zeros(shapes["input_ids"], dtype=torch.int32)
        return (ids, *(torch.zeros(shapes[name]) for name in self.input_names()[1:]))


def decoder(config: Any, profile: Profile, context: int) -> Decoder:
    """Reads a transformers config, or what `as_config` makes of config.json.

    Raises:
        UnsupportedError: the model needs what the graph does not do at this context (named).
    """
    kind = str(getattr(config, "model_type", "?"))
    heads = getattr(config, "num_attention_heads", None)
    if heads is None:
        raise UnsupportedError(f"{kind}: config has no num_attention_heads", "only text decoders are supported")
    _refuse_impossible_numbers(kind, config)
    rotated = _rotated_part(kind, config)
    _refuse_experts(kind, config)
    _refuse_short_windows(kind, config, context)
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    _refuse_uneven_heads(kind, config, heads, kv_heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return Decoder(kind, config.num_hidden_layers, heads, kv_heads, head_dim, config.hidden_size, config.vocab_size,
                   int(head_dim * rotated), profile, len(rotary_inputs(config)) > 1, profile.masked)


def rotary_inputs(config: Any) -> dict[str, tuple[str, str]]:
    """The inputs with cos and sin, by the type of the layers that rotate by them ("" where all rotate alike), in
    the order of the graph's inputs.

    Where there are two tables, those of full attention bear the plain names: Genie knows the other pair by its
    prefix, which is the one that Qualcomm's own Gemma graphs have.
    """
    types = list(rope_tables(config))
    if len(types) == 1:
        return {types[0]: (COS, SIN)}
    return {kind: (SWA_COS, SWA_SIN) if kind == _SLIDING else (COS, SIN) for kind in types}


def rope_tables(config: Any) -> dict[str, Any]:
    """RoPE parameters by layer type, of the types that there are; "" for all where they are not told apart."""
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict) or not any(isinstance(entry, dict) for entry in rope.values()):
        return {"": rope}
    return {kind: rope.get(kind) for kind in sorted(set(getattr(config, "layer_types", None) or rope))}


def as_config(raw: Mapping[str, Any]) -> SimpleNamespace:
    """config.json as transformers would present it, as far as its own keys say so.

    Older files spell RoPE as rope_scaling, rope_theta and rope_local_base_freq, and the Qwen family's windows as
    use_sliding_window (off unless said) and max_window_layers. A key that is left to a model's default is not there.
    """
    config = dict(raw)
    if "rope_parameters" not in config:
        rope = dict(config.get("rope_scaling") or {})
        rope |= {key: config[key] for key in ("rope_theta", "partial_rotary_factor") if key in config}
        tables = {_FULL: rope, _SLIDING: {"rope_theta": config.get("rope_local_base_freq")}}
        config["rope_parameters"] = tables if "rope_local_base_freq" in config else rope
    if "max_window_layers" in config and not config.get("layer_types"):
        config["use_sliding_window"] = bool(config.get("use_sliding_window")) and (
            config["max_window_layers"] < config.get("num_hidden_layers", 0))
    return SimpleNamespace(**config)


def _rotated_part(kind: str, config: Any) -> float:
    """How much of a head is rotated: 1, or less with partial rotary."""
    tables, parts = rope_tables(config), set[float]()
    for layers, rope in tables.items():
        of = f" for layers of type {layers}" if layers else ""
        if not isinstance(rope, dict):
            raise UnsupportedError(f"{kind}: config has no rope_parameters{of}",
                                   "decoder-only models with rotary positions are supported")
        theta = rope.get("rope_theta")
        if theta is not None and not (_at_least_zero(theta) and theta):
            raise UnsupportedError(f"{kind}: config has rope_theta: {theta!r}{of}"[:_LONGEST],
                                   "a number above 0 is read")
        part = rope.get("partial_rotary_factor", 1.0)
        if type(part) not in (int, float) or not 0 < part <= 1:
            raise UnsupportedError(f"{kind}: config has partial_rotary_factor: {part!r}{of}"[:_LONGEST],
                                   "a number above 0, up to 1, is read")
        parts.add(part)
    if len(parts) > 1 or len(tables) > 2:
        raise UnsupportedError(f"{kind}: layers of {len(tables)} types rotate {sorted(parts)} of a head"[:_LONGEST],
                               "two RoPE tables of one width are supported: full and sliding attention")
    return parts.pop()


def _refuse_impossible_numbers(kind: str, config: Any) -> None:
    """Text where a number belongs, sizes of nothing, a root of a negative number: every logit would be NaN."""
    for key in _SIZES:
        value = getattr(config, key, None)
        if value is not None and (type(value) is not int or value < 1):
            raise UnsupportedError(f"{kind}: config has {key}: {value!r}"[:_LONGEST], "a whole number above 0 is read")
    for key in ("rms_norm_eps", "layer_norm_eps"):
        if (value := getattr(config, key, None)) is not None and not _at_least_zero(value):
            raise UnsupportedError(f"{kind}: config has {key}: {value!r}"[:_LONGEST], "0 or a number above it is read")


def _at_least_zero(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _refuse_experts(kind: str, config: Any) -> None:
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if (count := getattr(config, key, None)) and count > 1:
            raise UnsupportedError(f"{kind}: a mixture of {count} experts ({key})", "dense models are supported")


def _refuse_uneven_heads(kind: str, config: Any, heads: int, kv_heads: int) -> None:
    if heads % kv_heads:
        raise UnsupportedError(f"{kind}: {heads} heads do not share {kv_heads} key-value heads evenly",
                               "num_attention_heads must be a multiple of num_key_value_heads")
    if not getattr(config, "head_dim", None) and config.hidden_size % heads:
        raise UnsupportedError(f"{kind}: hidden_size {config.hidden_size} is no multiple of {heads} heads",
                               "the config must then state head_dim")


def _refuse_short_windows(kind: str, config: Any, context: int) -> None:
    """The graph has one mask for all layers, so a window is right only when no token is ever outside it."""
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    types = getattr(config, "layer_types", None) or [_SLIDING if window else _FULL]
    strange = sorted(set(types) - {_FULL, _SLIDING})
    if strange:
        raise UnsupportedError(f"{kind}: layers of type {', '.join(strange)}",
                               "full attention, and sliding attention within its window, are supported")
    if _SLIDING in types and (window is None or context > window):
        raise UnsupportedError(f"{kind}: sliding attention over {window} tokens, and the context is {context}",
                               f"set target.context to {window} or less")
