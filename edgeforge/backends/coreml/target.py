"""A package as the runtime sees it: its functions as graphs of one part each, over one cache."""

from __future__ import annotations

from collections.abc import Mapping

from edgeforge_runtime.manifest import LOGITS, Graph, Part, Target, Tensor

from edgeforge import artifact
from edgeforge.adapt.shape import Decoder

EXECUTOR = "coreml"
"""of the bundle's target: what runs it is on the device"""
SIMULATOR = "coreml-sim"
"""of a target that stands for it on any machine"""
COREAI = "coreai"
"""of a target that is an .aimodel"""
DEVICE = "device"
"""folder of a bundle that goes to the device"""
PREFILL, DECODE = "prefill", "decode"
MOST_OUTPUTS = 16384
"""channels of one convolution; beyond, products leave the Neural Engine (ANEMLL and others split heads so)"""
_ROUND = 64
"""pieces but the last are multiples of it"""


def widths(prefill: int) -> dict[str, int]:
    """New tokens of each function."""
    return {PREFILL: prefill, DECODE: 1}


def pieces(vocab: int, most: int) -> tuple[int, ...]:
    """Words of each output that the logits leave in; one number where they leave whole."""
    count = -(-vocab // most)
    size = vocab if count == 1 else min(most, -(-vocab // count // _ROUND) * _ROUND)
    return tuple(min(size, vocab - start) for start in range(0, vocab, size))


def target(decoder: Decoder, functions: Mapping[str, int], past: int, file: str, dtype: str = "float16") -> Target:
    """Every function reads `past` cached tokens, so that one buffer serves them all, and makes the last token's logits.

    Args:
        functions: new tokens by name, widest first. file: of the bundle, where the package's model lies.
        dtype: of what is handed in and out (the simulator's is float32).
    """
    graphs = []
    for name, ar in functions.items():
        tensors = {n: t if t.dtype == "int32" else Tensor(n, dtype, t.shape)
                   for n, t in artifact.tensors(decoder, ar, past + ar).items()}
        parted = pieces(decoder.vocab, MOST_OUTPUTS)
        tensors[LOGITS] = Tensor(LOGITS, dtype, (1, 1, decoder.vocab), pieces=parted if len(parted) > 1 else ())
        part = Part(file, name, tuple(tensors[n] for n in decoder.input_names()),
                    tuple(tensors[n] for n in decoder.output_names()))
        graphs.append(Graph(ar, past + ar, (part,)))
    return Target(EXECUTOR, tuple(graphs))
