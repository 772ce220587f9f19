"""What Core ML and the Neural Engine do not do, told before any work: nothing here imports coremltools."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator

from edgeforge.backends.health import Card
from edgeforge.findings import Facts, Finding
from edgeforge.recipe import Recipe
from edgeforge.targets import APPLE_SYSTEMS, APPLES, AppleSystem, Chip

DISTRIBUTION, PINNED = "coremltools", "9.0"
INSTALL = f"pip install {DISTRIBUTION}=={PINNED}"
_LANE = 32
"""a last axis that is no multiple of it is padded, or leaves the Neural Engine (Apple's coreai-models, and coremltools
issue 2631)"""
_COREAI = {"coreai-core": "1.0.0b3", "coreai-torch": "0.4.3"}
INSTALL_COREAI = 'pip install "edgeforge-toolchain[coreai]"'
_FOUR, _WIDE_STATE = 4, 128
_STATES = (
    ("the Neural Engine's compiler refuses some stateful graphs that it takes without states (`ANECCompile() FAILED`, "
     "-14)", "leave apple.kv out where the app can hand the cache in"),
    ("4-bit tables beside states crashed after some hundred steps in packages of coremltools 9.0 (issue 2716)",
     "run device/verify_on_mac.py for long, or leave apple.kv out"),
)


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
    yield from _system(recipe)
    yield from _asset(facts)
    if recipe.apple.kv == "state":
        yield from _states(facts)


def system(recipe: Recipe) -> AppleSystem:
    """What the recipe's system takes."""
    return APPLE_SYSTEMS[recipe.apple.system]


def package_bytes(recipe: Recipe) -> int:
    """Weights of one file, at most."""
    return recipe.apple.package_bytes or APPLES[recipe.target.chip].package_bytes


def coreai() -> str:
    """Why Core AI cannot be asked here; empty when it can."""
    missing = [name for name in ("coreai", "coreai_torch") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(n.replace('_', '-') for n in missing)}: not installed"
    found = {name: importlib.metadata.version(name) for name in _COREAI}
    return "; ".join(f"{name} {found[name]} is installed, and {pinned} is what was tested"
                     for name, pinned in _COREAI.items() if found[name] != pinned)


def _system(recipe: Recipe) -> Iterator[Finding]:
    """Formats that the recipe's system does not read."""
    own, options, where = system(recipe), recipe.quantize, recipe.where("apple.system")
    needed = {name: system for name, system in APPLE_SYSTEMS.items() if system.functions}
    oldest = next(iter(needed))
    if not own.functions:
        yield Finding("recipe", where, f"{own.words}: a package holds one function, and prefill and decode would store "
                      "all weights twice", f"set apple.system to {oldest}, or a later one")
    if not own.four_bits and (options.four_bits or options.head == _FOUR):
        yield Finding("recipe", where, f"{own.words}: no blockwise constants, so no weights of 4 bits",
                      f"set apple.system to {oldest}, or quantize.weights and quantize.head to 8")
    if recipe.apple.kv == "state" and not own.state:
        yield Finding("recipe", where, f"{own.words}: no states, and apple.kv is state",
                      f"set apple.system to {oldest}, or leave apple.kv out")


def _asset(facts: Facts) -> Iterator[Finding]:
    """What stands against an .aimodel."""
    recipe, own = facts.recipe, system(facts.recipe)
    if recipe.apple.format == "mlpackage":
        return
    where = recipe.where("apple.format")
    if not own.assets:
        yield Finding("recipe", where, f"{own.words} reads no .aimodel: Core AI is there from iOS 27, macOS 27 on",
                      "set apple.system to ios27, or apple.format to mlpackage")
    if recipe.apple.kv == "state":
        yield Finding("recipe", where, "an .aimodel takes the cache as inputs here, and apple.kv is state",
                      "leave apple.kv out, or set apple.format to mlpackage")
    if why := coreai():
        yield Finding("error", where, why, INSTALL_COREAI)
    most = package_bytes(recipe)
    if facts.estimate is not None and facts.estimate.weights > most:
        yield Finding("recipe", where, f"{facts.estimate.weights / 2**30:.2f} GiB of weights, an .aimodel is one file, "
                      f"and one holds {most / 2**30:.2f} GiB",
                      "take fewer bits a weight, or set apple.format to mlpackage, which is cut")


def _states(facts: Facts) -> Iterator[Finding]:
    """Each trap by name: none can be tried here, and a device may well do without."""
    recipe = facts.recipe
    where = recipe.where("apple.kv")
    if facts.decoder is not None and facts.decoder.head_dim % _LANE:
        yield Finding("warning", where, f"states of heads of {facts.decoder.head_dim}: the Neural Engine refuses those "
                      f"that are no multiple of {_LANE} wide (coremltools issue 2631)", "leave apple.kv out")
    if recipe.target.prefill >= _WIDE_STATE:
        yield Finding("warning", where, f"{recipe.target.prefill} tokens written at once: the Neural Engine failed at "
                      "128, and took 16 and 32 (ANEMLL issue 27)", "set target.prefill to 32")
    for index, (what, change) in enumerate(_STATES):
        if index == 0 or recipe.quantize.four_bits:
            yield Finding("warning", where, what, change)


def card(chip: Chip) -> Card:
    """The chip as Core ML sees it."""
    size = APPLES[chip.name].package_bytes
    return Card("Neural Engine; float16, int8 and int4 with one step a channel; iOS 18, macOS 15 or later; "
                f"{size >> 30} GiB of weights a package",
                {"core_ml": "iOS 18", "weights": ["float16", "int8", "int4"], "package_bytes": size})
