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
_LIBRARIES = 700 << 20
"""what torch, transformers and onnxruntime take before there is a model"""


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
    """What a build will make and need; all in bytes.

    parts: in order. layer: weights of the largest layer. float32: the exported model, head and table apart.
    grams: statistics that gptq rounds by. reference: HuggingFace's logits, which the gates compare with.
    """

    parts: tuple[Part, ...]
    layer: int
    float32: int
    grams: int
    reference: int

    @property
    def weights(self) -> int:
        return sum(p.weights for p in self.parts)

    @property
    def kv(self) -> int:
        return sum(p.kv for p in self.parts)

    @property
    def memory(self) -> int:
        """The most that a stage holds, roughly."""
        return _LIBRARIES + max(4 * self.float32, 3 * self.float32 + 2 * self.grams)

    @property
    def disk(self) -> int:
        """All stages' artifacts and the bundle, roughly: five float models, ten times the codes."""
        return 5 * self.float32 + 10 * self.weights + self.grams + self.reference


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
    made = (Part("embedding", table * bits.embedding // 8), *body,
            Part("head", (head or table) * bits.weights // 8, logits=logits))
    count = sum(math.prod(t.shape) for t in tensors.values()) + (0 if head else table)
    grams = _grams(decoder, tensors) if bits.rounding == "gptq" else 0
    reference = recipe.gates.windows * recipe.target.context * decoder.vocab * _FLOAT_BYTES
    return Estimate(made, max(weights), count * _FLOAT_BYTES, grams, reference)


def _grams(decoder: Decoder, tensors: Mapping[str, TensorInfo]) -> int:
    """A matrix over the inputs of each product, float32; q, k and v share theirs, gate and up do."""
    widths = (t.shape[-1] for n, t in tensors.items() if len(t.shape) == 2 and _LAYER.search(n))
    own = sum(width**2 for width in widths if width != decoder.hidden)
    return (own + 3 * decoder.layers * decoder.hidden**2) * _FLOAT_BYTES


def kv_bytes(decoder: Decoder, context: int, bits: int) -> int:
    """Keys and values of context tokens in all layers."""
    return 2 * decoder.layers * decoder.kv_heads * decoder.head_dim * context * bits // 8


def _bytes(name: str, info: TensorInfo, weights: int, activations: int) -> int:
    count = math.prod(info.shape)
    if len(info.shape) > 1:
        return count * weights // 8
    return count * (_BIAS_BYTES if name.endswith("bias") else activations // 8)
