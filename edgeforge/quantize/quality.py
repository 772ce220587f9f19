"""How much work a quality buys: presets of the methods, each key open to the recipe.

On SmolLM2-135M (W4 in blocks of 64, weights alone; KL on text of calibration's kinds): nearest 0.41, the search for
scales 0.20, GPTQ and one refinement on top of it 0.11, a quarter of the asymmetric correction 0.09.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from edgeforge.quantize.weights.fit import Method

if TYPE_CHECKING:
    from edgeforge.recipe import Quantize

PRESETS = {
    "fast": Method("search", "nearest", refine=0, correction=0.0),
    "balanced": Method("search", "gptq", refine=1, correction=0.25),
    "best": Method("search", "gptq", refine=2, correction=0.25, importance=True, reconstruct=True),
}


def method(options: Quantize) -> Method:
    """The preset of the recipe's quality, with the keys that the recipe sets itself."""
    said = {key: value for key in ("scales", "rounding", "refine", "correction", "importance", "reconstruct")
            if (value := getattr(options, key)) is not None}
    return dataclasses.replace(PRESETS[options.quality], **said)
