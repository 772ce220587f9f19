"""What Core ML and the Neural Engine do not do, told before any work: nothing here imports coremltools."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator

from edgeforge.backends.health import Card
from edgeforge.findings import Facts, Finding
from edgeforge.targets import Chip

DISTRIBUTION, PINNED = "coremltools", "9.0"
INSTALL = f"pip install {DISTRIBUTION}=={PINNED}"
_LANE = 32
"""a last axis that is no multiple of it is padded, or leaves the Neural Engine (Apple's coreai-models, and coremltools
issue 2631)"""
_PROGRAM_BYTES = 2 << 30
"""weights of one program on the Neural Engine, at most (as ANEForge and ANEMLL found it)"""


def problem() -> str:
    """Why no package can be written here; empty when one can."""
    if importlib.util.find_spec(DISTRIBUTION) is None:
        return f"{DISTRIBUTION} is not installed"
    version = importlib.metadata.version(DISTRIBUTION)
    return "" if version == PINNED else f"{DISTRIBUTION} {version} is installed, and {PINNED} is what was tested"


def check(facts: Facts) -> Iterator[Finding]:
    """Everything that stands against this recipe on this chip, as far as it can be known."""
    recipe = facts.recipe
    if why := problem():
        yield Finding("error", DISTRIBUTION, why, INSTALL)
    for key in ("context", "prefill"):
        size = getattr(recipe.target, key)
        if size % _LANE:
            near = max(_LANE, round(size / _LANE) * _LANE)
            yield Finding("warning", recipe.where(f"target.{key}"), f"{size} tokens are no multiple of {_LANE}: what "
                          "is as long may leave the Neural Engine", f"set target.{key} to {near}")
    if facts.estimate is not None and facts.estimate.weights > _PROGRAM_BYTES:
        yield Finding("error", recipe.where("quantize.weights"), f"{facts.estimate.weights / 2**30:.1f} GiB of "
                      f"weights, and one program on the Neural Engine holds {_PROGRAM_BYTES >> 30} GiB",
                      "take fewer bits a weight, or a smaller model")


def card(chip: Chip) -> Card:
    """The chip as Core ML sees it."""
    return Card("Neural Engine; float16, int8 and int4 with one step a channel; iOS 18, macOS 15 or later",
                {"core_ml": "iOS 18", "weights": ["float16", "int8", "int4"]})
