"""How large a build gets, from the recipe, the config and the weight files' headers: before any work is done.

The plan of the parts is the split stage's own arithmetic, on the bytes that the headers imply. Rewrites on the
way (outlier channels split, rotations) change those by a percent or so.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from edgeforge.adapt.shape import Decoder
from edgeforge.checkpoint import TensorInfo
from edgeforge.graph import parts
from edgeforge.recipe import Recipe

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"
_BIAS_BYTES, _FLOAT_BYTES = 4, 4


@dataclass(frozen=True)
class Part:
    """One binary of the bundle; all sizes in bytes.

    weights: stored once a graph, or once for both where the chip shares them. kv: the cache that its layers keep.
    logits: what one chunk of prompt hands back.
    """

    name: str
    weights: int
    kv: int = 0
    logits: int = 0


@dataclass(frozen=True)
class Estimate:
    """parts, in order; parameters of the checkpoint; layer: weight bytes of the largest layer."""

    parts: tuple[Part, ...]
    parameters: int
    layer: int

    @property
    def weights(self) -> int:
        return sum(p.weights for p in self.parts)

    @property
    def kv(self) -> int:
        return sum(p.kv for p in self.parts)


def estimate(recipe: Recipe, decoder: Decoder, tensors: Mapping[str, TensorInfo]) -> Estimate | None:
    """The parts that a build will make; None when the tensors are not named as a decoder's are."""
    bits = recipe.quantize
    layers: dict[int, int] = defaultdict(int)
    table = head = 0
    for name, info in tensors.items():
        count, match = math.prod(info.shape), _LAYER.search(name)
        if match:
            layers[int(match[1])] += _bytes(name, info, bits.weights, bits.activations)
        elif name.endswith(_EMBEDDING):
            table = count
        elif name.endswith(_HEAD):
            head = count
    if not table or sorted(layers) != list(range(decoder.layers)):
        return None
    weights = [layers[i] for i in range(decoder.layers)]
    ends = list(accumulate(weights))
    cuts = parts.fit(ends[:-1], 0, ends[-1], recipe.split.part_bytes)
    cuts = list(range(decoder.layers - 1)) if cuts is None else cuts
    starts, stops = [0, *(i + 1 for i in cuts)], [*(i + 1 for i in cuts), decoder.layers]
    a_layer = kv_bytes(decoder, recipe.target.context, bits.kv) // decoder.layers
    body = (Part(f"layers {a}-{b - 1}" if b - a > 1 else f"layer {a}", sum(weights[a:b]), a_layer * (b - a))
            for a, b in zip(starts, stops, strict=True))
    logits = recipe.target.prefill * decoder.vocab * bits.activations // 8
    return Estimate((Part("embedding", table * bits.embedding // 8), *body,
                     Part("head", (head or table) * bits.weights // 8, logits=logits)),
                    sum(math.prod(t.shape) for t in tensors.values()), max(weights))


def kv_bytes(decoder: Decoder, context: int, bits: int) -> int:
    """Keys and values of context tokens in all layers."""
    return 2 * decoder.layers * decoder.kv_heads * decoder.head_dim * context * bits // 8


def _bytes(name: str, info: TensorInfo, weights: int, activations: int) -> int:
    count = math.prod(info.shape)
    if len(info.shape) > 1:
        return count * weights // 8
    return count * (_BIAS_BYTES if name.endswith("bias") else activations // 8)
