"""What Core ML and the Neural Engine do not do, told before any work: nothing here imports coremltools."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
from collections.abc import Iterator

from edgeforge.backends.coreml import systems
from edgeforge.backends.coreml.systems import LANE
from edgeforge.backends.health import Card
from edgeforge.findings import Facts, Finding
from edgeforge.targets import Apple, Chip

DISTRIBUTION, PINNED = "coremltools", "9.0"
_INT8, _LEAST_PALETTE = 8, 4
INSTALL = f"pip install {DISTRIBUTION}=={PINNED}"


def problem() -> str:
    """Why no package can be written here; empty when one can."""
    if importlib.util.find_spec(DISTRIBUTION) is None:
        return f"{DISTRIBUTION} is not installed"
    version = importlib.metadata.version(DISTRIBUTION)
    return "" if version == PINNED else f"{DISTRIBUTION} {version} is installed, and {PINNED} is what was tested"


def versions() -> dict[str, str | None]:
    """Of what decides what a package becomes."""
    found = importlib.util.find_spec(DISTRIBUTION) is not None
    return {DISTRIBUTION: importlib.metadata.version(DISTRIBUTION) if found else None}


def apple(chip: Chip) -> Apple:
    """chip as what this backend builds for; ValueError: another maker's."""
    if not isinstance(chip, Apple):
        raise ValueError(f"{chip.name} is none of Apple's")
    return chip


def check(facts: Facts) -> Iterator[Finding]:
    """Everything that stands against this recipe on this chip, as far as it can be known."""
    recipe, chip = facts.recipe, apple(facts.chip)
    if why := problem():
        yield Finding("error", DISTRIBUTION, why, INSTALL)
    heads, palette = facts.decoder.head_dim if facts.decoder is not None else 0, recipe.quantize.palette
    if palette is not None and heads % palette:
        yield Finding("recipe", recipe.where("quantize.palette"), f"tables that {palette} outputs share, and a head of "
                      f"this model has {heads}: each head is a product of its own", "set quantize.palette to "
                      f"{math.gcd(heads, palette)}" if math.gcd(heads, palette) >= _LEAST_PALETTE else
                      "leave quantize.palette out")
    tied = (facts.config or {}).get("tie_word_embeddings") is True
    if tied and recipe.quantize.untied and not recipe.quantize.rounded:
        yield Finding("warning", recipe.where("quantize.embedding"), f"{recipe.quantize.embedding} bits, and the head "
                      "of this model reads the same table in float16: the package stores both",
                      "leave quantize.embedding out, or set quantize.head to 8")
    if chip.unit == "ane":
        yield from _engine(facts, chip)
    yield from systems.check(facts, chip)


def _engine(facts: Facts, chip: Apple) -> Iterator[Finding]:
    """What the Neural Engine does not like."""
    recipe = facts.recipe
    for key in ("context", "prefill"):
        if getattr(recipe.target, key) % LANE:
            yield Finding("warning", recipe.where(f"target.{key}"), f"{getattr(recipe.target, key)} tokens are no "
                          f"multiple of {LANE}: what is as long may leave the Neural Engine",
                          f"set target.{key} to {_near(facts, key)}")
    if recipe.quantize.activations == _INT8 and not chip.int8:
        yield Finding("warning", recipe.where("quantize.activations"), f"8 bits, and {chip.name} multiplies int8 by "
                      "int8 no faster than float16: A17 Pro, M4 and later do", "set quantize.activations to 16")


def _near(facts: Facts, key: str) -> int:
    """A multiple of LANE near what the recipe says, that it would not be refused for: a prefill as the context holds
    twice, a context that holds two prefills and that the model was made for."""
    target = facts.recipe.target
    prefill = max(target.prefill // LANE, 1) * LANE
    if key == "prefill":
        return prefill
    least = -(-max(target.context, target.least_context) // LANE) * LANE
    most = (facts.config or {}).get("max_position_embeddings")
    return least if not isinstance(most, int) or least <= most else most // LANE * LANE


def card(chip: Chip) -> Card:
    """The chip as Core ML sees it."""
    size, engine = apple(chip).package_bytes, apple(chip).unit == "ane"
    form = "one step a channel" if engine else "one step a channel or block"
    what, since = ("Neural Engine", "iOS 18, macOS 15") if engine else ("GPU", "macOS 15")
    return Card(f"{what}; float16, int8 and int4 with {form}, tables of 4 and 6 bits; {since} or later; "
                f"{size >> 30} GiB of weights a package",
                {"core_ml": since.partition(",")[0], "weights": ["float16", "int8", "int4", "lut6", "lut4"],
                 "package_bytes": size})
