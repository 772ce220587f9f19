"""How much work a quality buys: presets of the methods, each key open to the recipe.

SmolLM2-135M, W4 in blocks of 64, weights alone, KL on text of calibration's kinds and on novels: `balanced` with 4k
tokens 0.097 / 0.167, with the default 12k tokens 0.080 / 0.143 in 355 CPU seconds; three refinements instead of one
0.073 / 0.145. Without importance 4k tokens gave 0.123, and the correction then had no part in it. Reconstruction
cost twice the time and gave nothing there (0.109 / 0.172 with 4k tokens), so no preset has it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from edgeforge.quantize.weights.fit import Method

if TYPE_CHECKING:
    from edgeforge.recipe import Quantize

PRESETS = {
    "fast": Method("search", "nearest", refine=0, correction=0.0, importance=False, reconstruct=False),
    "balanced": Method("search", "gptq", refine=1, correction=0.25, importance=True, reconstruct=False),
    "best": Method("search", "gptq", refine=4, correction=0.25, importance=True, reconstruct=False),
}


def method(options: Quantize, decoder: bool) -> Method:
    """The preset of the recipe's quality, with the keys that the recipe sets itself; only a decoder has tokens that
    count."""
    said = {key: value for key in ("scales", "rounding", "refine", "correction", "importance", "reconstruct")
            if (value := getattr(options, key)) is not None}
    made = dataclasses.replace(PRESETS[options.quality], **said)
    return made if decoder else dataclasses.replace(made, importance=False)
