"""How much work a quality buys: presets of the methods, each key open to the recipe.

`best` is `balanced` on four times the text (scope.BEST_WINDOWS), for what is short is not work on a weight but text:
SmolLM2-135M, W4 in blocks of 64, weights alone, KL on text of calibration's kinds and on a novel
(scripts/bench/ptq.py): `balanced` 0.086 and 0.118 in 250 CPU seconds, `best` 0.064 and 0.112 in 680, each gap's
interval without zero. On that text four refinements instead of one gave 0.062 and 0.115; not rotated, `balanced` gave
0.090 and 0.148. With 4k tokens it was 0.097 and 0.167 on other novels, without importance 0.123 on the first, and
reconstruction cost twice the time and gave nothing there (0.109 / 0.172), so no preset has it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from edgeforge.quantize.weights import lpbq, seqmse
from edgeforge.quantize.weights.fit import Method

if TYPE_CHECKING:
    from edgeforge.sections import Quantize

_BALANCED = Method("search", "gptq", refine=1, correction=0.25, importance=True, reconstruct=False)
PRESETS = {
    "fast": Method("search", "nearest", refine=0, correction=0.0, importance=False, reconstruct=False),
    "balanced": _BALANCED,
    "best": _BALANCED,
}


def method(options: Quantize, decoder: bool) -> Method:
    """The preset of the recipe's quality, with the keys that the recipe sets itself; only a decoder has tokens that
    count."""
    said = {key: value for key in ("scales", "rounding", "refine", "correction", "importance", "reconstruct")
            if (value := getattr(options, key)) is not None}
    tried = options.candidates
    made = dataclasses.replace(PRESETS[options.quality], **said,
                               shares=seqmse.shares(tried.steps, tried.least, tried.most),
                               floats=seqmse.shares(tried.floats, *lpbq.REACH))
    return made if decoder else dataclasses.replace(made, importance=False)
