"""What each of Apple's systems reads, and what states and an .aimodel are known to stumble over; told before any
work."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator

from edgeforge.findings import Facts, Finding
from edgeforge.recipe import Recipe
from edgeforge.targets import APPLE_SYSTEMS, Apple, AppleSystem

COREAI = {"coreai-core": "1.0.0b3", "coreai-torch": "0.4.3"}
INSTALL_COREAI = 'pip install "edgeforge-toolchain[coreai]"'
_FOUR, _FLOAT16, _WIDE_STATE = 4, 16, 128
LANE = 32
"""a last axis that is no multiple of it is padded, or leaves the Neural Engine (Apple's coreai-models, and coremltools
issue 2631)"""
_STATES = (
    ("the Neural Engine's compiler refuses some stateful graphs that it takes without states (`ANECCompile() FAILED`, "
     "-14)", "leave apple.kv out where the app can hand the cache in"),
    ("4-bit tables beside states crashed after some hundred steps in packages of coremltools 9.0 (issue 2716)",
     "run device/verify_on_mac.py for long, or leave apple.kv out"),
)


def system(recipe: Recipe) -> AppleSystem:
    """What the recipe's system takes."""
    return APPLE_SYSTEMS[recipe.apple.system]


def package_bytes(recipe: Recipe, chip: Apple) -> int:
    """Weights of one file, at most."""
    return recipe.apple.package_bytes or chip.package_bytes


def check(facts: Facts, chip: Apple) -> Iterator[Finding]:
    """What stands against the recipe's section `apple` on this chip."""
    if facts.recipe.apple.format != "aimodel":
        yield from _packages(facts, chip)
    yield from _system(facts.recipe)
    yield from _asset(facts, chip)
    if facts.recipe.apple.kv == "state" and chip.unit == "ane":
        yield from _states(facts)


def coreai() -> str:
    """Why Core AI cannot be asked here; empty when it can."""
    missing = [name for name in ("coreai", "coreai_torch") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(n.replace('_', '-') for n in missing)}: not installed"
    found = {name: importlib.metadata.version(name) for name in COREAI}
    return "; ".join(f"{name} {found[name]} is installed, and {pinned} is what was tested"
                     for name, pinned in COREAI.items() if found[name] != pinned)


def _packages(facts: Facts, chip: Apple) -> Iterator[Finding]:
    """What one file may hold, which packages are cut for."""
    most, where = package_bytes(facts.recipe, chip), facts.recipe.where("apple.package_bytes")
    piece = 0 if facts.estimate is None else facts.estimate.piece
    if piece > most:
        yield Finding("recipe", where, f"the embedding, the head or one layer holds {piece:,} bytes of weights, and a "
                      f"package {most:,}", f"set apple.package_bytes to {piece * 11 // 10} or more, or take fewer bits")
    if most > chip.package_bytes:
        yield Finding("warning", where, f"{most:,} bytes in one package, and {chip.name} is known to load "
                      f"{chip.package_bytes:,}", "leave apple.package_bytes out")


def _system(recipe: Recipe) -> Iterator[Finding]:
    """Formats that the recipe's system does not read."""
    own, options, where = system(recipe), recipe.quantize, recipe.where("apple.system")
    needed = {name: system for name, system in APPLE_SYSTEMS.items() if system.functions}
    oldest = next(iter(needed))
    if not own.functions:
        yield Finding("recipe", where, f"{own.words}: a package holds one function, and prefill and decode would store "
                      "all weights twice", f"set apple.system to {oldest}, or a later one")
    if not own.four_bits and (options.palette or options.giver(_FOUR)):
        yield Finding("recipe", where, f"{own.words}: no blockwise constants and no tables of groups, so no weights of "
                      "4 or 6 bits", f"set apple.system to {oldest}, or quantize.weights and quantize.head to 8")
    if recipe.apple.kv == "state" and not own.state:
        yield Finding("recipe", where, f"{own.words}: no states, and apple.kv is state",
                      f"set apple.system to {oldest}, or leave apple.kv out")


def _asset(facts: Facts, chip: Apple) -> Iterator[Finding]:
    """What stands against an .aimodel."""
    recipe, own = facts.recipe, system(facts.recipe)
    if recipe.apple.format == "mlpackage":
        return
    where = recipe.where("apple.format")
    if not own.assets:
        yield Finding("recipe", where, f"{own.words} reads no .aimodel: Core AI is there from iOS 27, macOS 27 on",
                      "set apple.system to ios27, or apple.format to mlpackage")
    if recipe.quantize.activations < _FLOAT16:
        yield Finding("recipe", where, "an .aimodel computes in float16 here, and quantize.activations is "
                      f"{recipe.quantize.activations}", "set quantize.activations to 16, or apple.format to mlpackage")
    if recipe.apple.kv == "state":
        yield Finding("recipe", where, "an .aimodel takes the cache as inputs here, and apple.kv is state",
                      "leave apple.kv out, or set apple.format to mlpackage")
    if why := coreai():
        yield Finding("error", where, why, INSTALL_COREAI)
    if recipe.apple.format == "aimodel" and recipe.apple.package_bytes is not None:
        yield Finding("recipe", recipe.where("apple.package_bytes"), "packages are cut to this size, and an .aimodel "
                      "is one file", "leave apple.package_bytes out, or set apple.format to mlpackage")
    if facts.estimate is not None and facts.estimate.weights > chip.package_bytes:
        yield Finding("recipe", where, f"{facts.estimate.weights:,} bytes of weights, an .aimodel is one file, and "
                      f"{chip.name} is known to load {chip.package_bytes:,}",
                      "take fewer bits a weight, or set apple.format to mlpackage, which is cut")


def _states(facts: Facts) -> Iterator[Finding]:
    """Each trap by name: none can be tried here, and a device may well do without."""
    recipe = facts.recipe
    where = recipe.where("apple.kv")
    if facts.decoder is not None and facts.decoder.head_dim % LANE:
        yield Finding("warning", where, f"states of heads of {facts.decoder.head_dim}: the Neural Engine refuses those "
                      f"that are no multiple of {LANE} wide (coremltools issue 2631)", "leave apple.kv out")
    if recipe.target.prefill >= _WIDE_STATE:
        yield Finding("warning", where, f"{recipe.target.prefill} tokens written at once: the Neural Engine failed at "
                      "128, and took 16 and 32 (ANEMLL issue 27)", "set target.prefill to 32")
    for index, (what, change) in enumerate(_STATES):
        if index == 0 or recipe.quantize.palette is not None:
            yield Finding("warning", where, what, change)
