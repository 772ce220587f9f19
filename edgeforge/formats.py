"""What a recipe asks of numbers, held against what its chip's profile has: the same for every chip of one kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgeforge import targets
from edgeforge.findings import Finding

if TYPE_CHECKING:
    from edgeforge.recipe import Recipe
    from edgeforge.targets import Profile

_READ = 8
"""bits of codes that products multiply by codes"""
_PALETTE = 16
"""outputs that share a table, where a message names a number"""


def check(recipe: Recipe) -> Iterator[Finding]:
    """Formats that nothing of this profile computes with."""
    profile, options = targets.chip(recipe.target.chip).profile, recipe.quantize
    chip = recipe.target.chip
    flow = "float16" if profile.flow == "float16" else f"integer codes of {_either(profile.activation_bits)} bits"
    if options.activations not in profile.activation_bits:
        why = f": {profile.whole_activations}" if profile.whole_activations else ""
        yield Finding("recipe", recipe.where("quantize.activations"), f"{options.activations} bits, and {chip} "
                      f"computes on {flow}{why}", f"set quantize.activations to {profile.activation_bits[-1]}" + (
                          f", or {profile.elsewhere}" if profile.elsewhere else ""))
    if options.eight_bits not in profile.eight_bits:
        yield Finding("recipe", recipe.where("quantize.eight_bits"), f"{options.eight_bits}, and {chip} computes on "
                      f"{flow}", "leave quantize.eight_bits out")
    if options.block is not None and not profile.blocks:
        why = f"{chip} takes one step a channel" + (f": {profile.whole_steps}" if profile.whole_steps else "")
        other = f", or take quantize.palette {_PALETTE} for it: 4 bits that name an entry of a table"
        yield Finding("recipe", recipe.where("quantize.block"), f"blocks of {options.block}, and {why}",
                      f"leave quantize.block out{other if profile.tables else ''}")
    elif options.block is not None and options.block not in profile.blocks:
        yield Finding("recipe", recipe.where("quantize.block"), f"blocks of {options.block}, and {chip} takes "
                      f"{_either(profile.blocks)}", f"set quantize.block to {profile.blocks[-1]}")
    if options.palette is not None and not profile.tables:
        yield Finding("recipe", recipe.where("quantize.palette"), f"tables that {options.palette} outputs share, and "
                      f"{chip} reads codes on even steps", "leave quantize.palette out, with quantize.weights 4 and "
                      f"quantize.block {profile.blocks[-1]}, or quantize.weights 8")
    if options.palette is None:
        yield from _six_bits(recipe, profile)
    if profile.flow == "float16":
        yield from _float16(recipe, profile)


def _six_bits(recipe: Recipe, profile: Profile) -> Iterator[Finding]:
    """Of a recipe without tables."""
    block = recipe.quantize.block
    for key in recipe.quantize.six_bits:
        change = f"set quantize.{key} to 8"
        if profile.tables:
            change += f", or quantize.palette to {_PALETTE}" + (" in place of quantize.block" if block else "")
        has = "" if profile.tables else f", and {recipe.target.chip} reads none"
        yield Finding("recipe", recipe.where(f"quantize.{key}"), f"6 bits, which only entries of tables have{has}",
                      change)


def _float16(recipe: Recipe, profile: Profile) -> Iterator[Finding]:
    options, chip = recipe.quantize, recipe.target.chip
    if not recipe.decoder:
        yield Finding("recipe", recipe.where("model"), f"a plain graph, and {chip} takes language models here",
                      "set target.chip to one of Qualcomm's, which takes both")
    if "equalize_kv" in options.transforms:
        yield Finding("recipe", recipe.where("quantize.transforms"), f"equalize_kv fills a cache's grid, and on {chip} "
                      "the cache is float16, which has none", "leave equalize_kv out")
    if options.encodings is not None:
        yield Finding("recipe", recipe.where("quantize.encodings"), "encodings of another tool cover a graph of "
                      f"integer codes, and {chip} computes in float16", "leave quantize.encodings out")
    asked = {"weights": options.weights, "head": options.head,
             "exceptions": min(options.exceptions.values(), default=_READ)}
    narrow = {key: bits for key, bits in asked.items() if bits < _READ}
    if options.activations == _READ and _READ in profile.activation_bits:
        for key, bits in narrow.items():
            yield Finding("recipe", recipe.where(f"quantize.{key}"), f"{bits}-bit weights beside 8-bit activations, "
                          f"and {chip} multiplies codes of 8 bits by codes of 8 bits",
                          f"set quantize.{key} to 8, or quantize.activations to 16")
        if options.weights > _READ:
            yield Finding("recipe", recipe.where("quantize.activations"), f"8 bits beside weights of {options.weights}"
                          ": nothing would read them", "set quantize.weights to 8, or quantize.activations to 16")


def _either(sizes: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, sizes[:-1]))} or {sizes[-1]}" if len(sizes) > 1 else str(sizes[0])
