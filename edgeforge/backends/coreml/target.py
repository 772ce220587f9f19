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
PREFILL, DECODE = "prefill", "decode"


def widths(prefill: int) -> dict[str, int]:
    """New tokens of each function."""
    return {PREFILL: prefill, DECODE: 1}


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
        tensors[LOGITS] = Tensor(LOGITS, dtype, (1, 1, decoder.vocab))
        part = Part(file, name, tuple(tensors[n] for n in decoder.input_names()),
                    tuple(tensors[n] for n in decoder.output_names()))
        graphs.append(Graph(ar, past + ar, (part,)))
    return Target(EXECUTOR, tuple(graphs))
