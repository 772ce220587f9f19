"""How large a build gets, from the recipe, the config and the weight files' headers: before any work is done.

The plan of the parts is the split stage's own arithmetic, on the bytes that the headers imply. Rewrites on the
way (outlier channels split, rotations) change those by a percent or so.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from edgeforge.adapt.shape import Decoder
from edgeforge.checkpoint import TensorInfo
from edgeforge.graph import parts
from edgeforge.quantize import exceptions
from edgeforge.recipe import Recipe
from edgeforge.sections import Quantize

LAYER = re.compile(r"(?:^|\.)(?:layers|blk)\.(\d+)\.")
EMBEDDING, HEAD = ("embed_tokens.weight", "token_embd.weight"), ("lm_head.weight", "output.weight")
"""as transformers names them, and as GGUF does"""
_BIAS_BYTES, _FLOAT_BYTES, _HALF, _TABLES = 4, 4, 16, (4, 6)
_LIBRARIES, _COMPILER, _COMPILER_A_WEIGHT = 700 << 20, 300 << 20, 15
"""bytes that torch and onnxruntime take before there is a model, that the compiler takes, and takes for each weight"""


@dataclass(frozen=True)
class Part:
    """One binary of the bundle; all sizes in bytes.

    weights: stored once a graph, or once for both where the chip shares them. bits: of nearly all of them. kv: the
    cache that its layers keep. logits: what one chunk of prompt hands back.
    """

    name: str
    weights: int
    bits: int
    kv: int = 0
    logits: int = 0


@dataclass(frozen=True)
class Estimate:
    """What a build will make and need; all in bytes. memory and disk are rough: what SmolLM2-135M took, scaled by what
    each stage holds and writes.

    parts: in order. layer: weights of the largest layer. piece: of the largest of layers, embedding and head. float32:
    the exported model, head and table apart. reference: HuggingFace's logits, which the gates compare with. compilers:
    all that run at once.
    """

    parts: tuple[Part, ...]
    layer: int
    piece: int
    float32: int
    reference: int
    compilers: int

    @property
    def weights(self) -> int:
        return sum(p.weights for p in self.parts)

    @property
    def kv(self) -> int:
        return sum(p.kv for p in self.parts)

    @property
    def memory(self) -> int:
        """The most that all processes of a stage hold: the split, calibration, or two compilers at once."""
        return _LIBRARIES + max(4 * self.float32, 3 * self.float32 // 2 + self.compilers)

    @property
    def disk(self) -> int:
        """All stages' artifacts and the bundle: five float models, twelve times the codes."""
        return 5 * self.float32 + 12 * self.weights + self.reference


def estimate(recipe: Recipe, decoder: Decoder, tensors: Mapping[str, TensorInfo]) -> Estimate | None:
    """The parts that a build will make; None when the tensors are not named as a decoder's are."""
    bits, half = recipe.quantize, decoder.profile.flow == "float16"
    layers: dict[int, int] = defaultdict(int)
    for name, info in tensors.items():
        if match := LAYER.search(name):
            layers[int(match[1])] += _bytes(name, info, bits, half)
    table = _count(tensors, EMBEDDING)
    # The count first: a config may say 2^40 layers.
    if not table or len(layers) != decoder.layers or sorted(layers) != list(range(len(layers))):
        return None
    head = _count(tensors, HEAD)
    weights = [layers[i] for i in range(decoder.layers)]
    logits = recipe.target.prefill * decoder.vocab * 2
    top = _codes((decoder.vocab, (head or table) // decoder.vocab), bits, bits.head, half)
    table_bytes = table * bits.embedding // 8
    made: tuple[Part, ...] = (
        Part("embedding", table_bytes, bits.embedding), *_body(recipe, decoder, weights),
        Part("head", top, bits.head, logits=logits))
    if half:
        kv = kv_bytes(decoder, recipe.target.context, _HALF)
        own = 0 if not head and not bits.untied else top  # what is rounded has no more part in the table
        made = (Part(decoder.profile.binary, table_bytes + sum(weights) + own, bits.weights, kv, logits),)
    count = sum(math.prod(t.shape) for t in tensors.values()) + (0 if head else table)
    reference = recipe.gates.windows * recipe.target.context * decoder.vocab * _FLOAT_BYTES
    largest = max(p.weights * 8 // p.bits for p in made)
    a_byte, a_weight = decoder.profile.builder
    compilers = (a_byte * made[0].weights + a_weight * count if half else
                 2 * (_COMPILER + _COMPILER_A_WEIGHT * largest))
    return Estimate(made, max(weights), max(*weights, table_bytes, top), count * _FLOAT_BYTES, reference, compilers)


def product_inputs(tensors: Mapping[str, TensorInfo]) -> dict[str, int]:
    """How many inputs each product of the layers and the head has, by the checkpoint's name of its weight; a head that
    the checkpoint ties to the embedding has a name of its own in the graph."""
    found = {name: info.shape[-1] for name, info in tensors.items()
             if len(info.shape) == 2 and (LAYER.search(name) or name.endswith(HEAD))}
    tied = next((info for name, info in tensors.items() if name.endswith(EMBEDDING)), None)
    if tied is not None and not any(name.endswith(HEAD) for name in found):
        found[HEAD[0]] = tied.shape[-1]
    return found


def below_head(tensors: Mapping[str, TensorInfo]) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of each product of the layers, by the checkpoint's name of its weight."""
    return {name: (info.shape[0], info.shape[-1]) for name, info in tensors.items()
            if len(info.shape) == 2 and LAYER.search(name)}


def kv_bytes(decoder: Decoder, context: int, bits: int) -> int:
    """Keys and values of context tokens in all layers."""
    return 2 * decoder.layers * decoder.kv_heads * decoder.head_dim * context * bits // 8


def _body(recipe: Recipe, decoder: Decoder, weights: list[int]) -> Iterator[Part]:
    """The layers as the split stage would part them; one a part when even that is more than the recipe allows."""
    ends = list(accumulate(weights))
    cuts = parts.fit(ends[:-1], 0, ends[-1], recipe.split.part_bytes)
    firsts = [0, *(i + 1 for i in (range(decoder.layers - 1) if cuts is None else cuts)), decoder.layers]
    kv = kv_bytes(decoder, recipe.target.context, recipe.quantize.kv) // decoder.layers
    for a, b in pairwise(firsts):
        name = f"layers {a}-{b - 1}" if b - a > 1 else f"layer {a}"
        yield Part(name, sum(weights[a:b]), recipe.quantize.weights, kv * (b - a))


def tensor(tensors: Mapping[str, TensorInfo], ends: tuple[str, ...]) -> TensorInfo | None:
    """The one outside the layers whose name ends so."""
    return next((t for n, t in tensors.items() if n.endswith(ends) and not LAYER.search(n)), None)


def _count(tensors: Mapping[str, TensorInfo], names: tuple[str, ...]) -> int:
    found = tensor(tensors, names)
    return math.prod(found.shape) if found is not None else 0


def _bytes(name: str, info: TensorInfo, bits: Quantize, half: bool) -> int:
    count = math.prod(info.shape)
    if len(info.shape) > 1:
        return _codes(info.shape, bits, exceptions.bits(name, bits.exceptions) or bits.weights, half)
    return count * (_BIAS_BYTES if name.endswith("bias") and not half else _HALF // 8)


def _codes(shape: Sequence[int], options: Quantize, bits: int, half: bool) -> int:
    """A weight's codes, and its tables, or a byte for the scale of each block, or two where that is a float16."""
    count = math.prod(shape)
    if options.palette and bits in _TABLES:
        return count * bits // 8 + (_HALF // 8 << bits) * shape[0] // options.palette
    return count * bits // 8 + ((1 + half) * count // options.block if options.block and bits == 4 else 0)
