"""What HTP, Genie and the installed compiler cannot do, told before any work: nothing here compiles or loads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edgeforge_runtime.typed import read_json

from edgeforge.backends.health import Card
from edgeforge.backends.qnn import genie, wheel
from edgeforge.backends.qnn.chips import snapdragon
from edgeforge.encodings import Table
from edgeforge.errors import CompilerError, UnsupportedError
from edgeforge.estimate import Part
from edgeforge.findings import Facts, Finding
from edgeforge.targets import Chip

CRASHING = 64
"""Blocks of this size crash the x86 emulator of onnxruntime-qnn 2.7.0 when it runs a binary that was loaded, for some
numbers of inputs (448, 512, 576, 832, 896 and 1216 of 64 to 4096 tried) and 64 outputs or more: it writes past the
end of its VTCM. The process that compiled the same graph runs it to 1 LSB. Blocks of 32 and 16 are loaded and run."""
CRASHING_INPUTS = (448, 512, 576, 832, 896, 1216)
_CONFIGS = ("config.json", "generation_config.json")
_OVER_WEIGHTS = 1.25
"""What the compiler allocates for a graph over its weights: 1.04 to 1.21 in public reports of its refusals"""


def check(facts: Facts) -> Iterator[Finding]:
    """Everything that stands against this recipe on this chip, as far as it can be known."""
    yield from _toolchain()
    yield from _formats(facts)
    yield from _foreign(facts)
    yield from _graphs(facts)
    if facts.folder is not None and (facts.folder / _CONFIGS[0]).is_file():
        yield from _genie(facts, facts.folder)


def may_crash(table: Table) -> bool:
    """Does any weight have blocks that the emulator may crash on?"""
    return any(e.block_scale is not None and e.block == CRASHING for e in table.values())


def card(chip: Chip) -> Card:
    """The chip as Qualcomm's compiler sees it; facts: its numbers, and Hexagon's fields."""
    known = snapdragon(chip)
    hexagon, bits = known.hexagon, "/".join(map(str, known.hexagon.weight_bits))
    line = (f"SoC {known.soc_model}, Hexagon v{known.dsp_arch}, {known.vtcm_mb} MiB VTCM; weights of {bits} bits, "
            f"{'with' if hexagon.block_weights else 'no'} blocks, "
            f"{'shared' if hexagon.sharing else 'not shared'} by prefill and decode")
    return Card(line, {"soc_model": known.soc_model, "vtcm_mb": known.vtcm_mb, **dataclasses.asdict(hexagon)})


def _toolchain() -> Iterator[Finding]:
    try:
        found = wheel.find()
        found.library(wheel.HTP)
    except CompilerError as error:
        yield Finding("error", wheel.DISTRIBUTION, error.message, error.hint)
        return
    if found.version != wheel.TESTED:
        yield Finding("warning", wheel.DISTRIBUTION, f"version {found.version} is installed, {wheel.TESTED} was tested",
                      f"pip install {wheel.DISTRIBUTION}=={wheel.TESTED}")


def _formats(facts: Facts) -> Iterator[Finding]:
    chip, recipe = snapdragon(facts.chip), facts.recipe
    takes = chip.hexagon.weight_bits
    for key, bits in (("weights", recipe.quantize.weights), ("head", recipe.quantize.head)):
        if bits not in takes and key not in recipe.quantize.six_bits:  # of six, formats.py tells
            yield Finding("recipe", recipe.where(f"quantize.{key}"),
                          f"{bits}-bit weights beside 16-bit activations; {chip.name} (Hexagon v{chip.dsp_arch}) takes "
                          f"{' or '.join(map(str, takes))}, v73 and later take 4 too",
                          f"set quantize.{key} to {takes[0]}, or target.chip to a chip with Hexagon v73 or later")
    if recipe.quantize.kv not in chip.hexagon.kv_bits:
        yield Finding("recipe", recipe.where("quantize.kv"),
                      f"a {recipe.quantize.kv}-bit cache; {chip.name} (Hexagon v{chip.dsp_arch}) multiplies "
                      "activations by 8-bit ones only, v73 and later by signed 16-bit ones too",
                      "set quantize.kv to 8, or target.chip to a chip with Hexagon v73 or later")
    if odd := {p: b for p, b in recipe.quantize.exceptions.items() if b not in takes}:
        yield Finding("recipe", recipe.where("quantize.exceptions"),
                      f"{', '.join(f'{p}: {b}' for p, b in odd.items())}; {chip.name} (Hexagon v{chip.dsp_arch}) takes "
                      f"{' or '.join(map(str, takes))} bits", f"set them to {takes[0]}")
    if recipe.quantize.block is not None and not chip.hexagon.block_weights:
        yield Finding("recipe", recipe.where("quantize.block"),
                      f"weights in blocks of {recipe.quantize.block}; {chip.name} (Hexagon v{chip.dsp_arch}) has one "
                      "scale an output channel, v73 and later take blocks",
                      "leave quantize.block out, or set target.chip to a chip with Hexagon v73 or later")
    if recipe.quantize.block == CRASHING and facts.decoder is not None and (
            facts.decoder.hidden in CRASHING_INPUTS):
        yield Finding("warning", recipe.where("quantize.block"), _crash(facts.decoder.hidden),
                      "set quantize.block to 32, which loads")
    if not chip.weight_sharing and facts.estimate is not None:
        yield Finding("warning", recipe.where("target.chip"),
                      f"Hexagon v{chip.dsp_arch} does not share weights: each device binary holds them twice, "
                      f"{2 * facts.estimate.weights >> 20} MiB in all", "a chip with Hexagon v73 or later shares them")


def _crash(inputs: int) -> str:
    return (f"the x86 emulator crashes on weights of {inputs} inputs in blocks of {CRASHING}: the x86 twin will not "
            "load; the gate compiles such a part anew to run its decode steps")


def _foreign(facts: Facts) -> Iterator[Finding]:
    """Grids of quantize.encodings that this chip or the compiler does not have. 32 bits are a bias's: they are not
    read."""
    chip = snapdragon(facts.chip)
    takes = chip.hexagon.weight_bits
    name = f"{chip.name} (Hexagon v{chip.dsp_arch})"
    width = " or ".join(map(str, takes))
    newer = "set target.chip to a chip with Hexagon v73 or later"
    blocks = [g.name for g in facts.foreign if "blocks" in g.scales]
    narrow = [g.name for g in facts.foreign if g.bits not in (*takes, 32)]
    floats = [g.name for g in facts.foreign if g.scales == "float blocks"]
    shifted = [g.name for g in facts.foreign if not g.symmetric and (g.scales == "channel" or g.bits == 4)]
    for names, what, change in (
            (narrow, f"other bits than {name} takes: {width}",
             f"export weights with {width} bits, and activations with 16 (caches as quantize.kv says)"
             + ("" if 4 in takes else f", or {newer}")),
            ([] if chip.hexagon.block_weights else blocks, f"in blocks; {name} has one scale an output channel",
             f"export them per channel, or {newer}"),
            (floats if chip.hexagon.block_weights else [], "in blocks with float scales, which run in float",
             "export LPBQ: its blocks have whole-number scales"),
            (shifted, "asymmetric with 4 bits or a scale a channel, which the compiler refuses",
             "export weights symmetric")):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            yield Finding("recipe", facts.recipe.where("quantize.encodings"), f"{', '.join(names[:3])}{more}: {what}",
                          change)
    if chip.hexagon.block_weights and (crashing := [
            g for g in facts.foreign if g.block == CRASHING and g.inputs in CRASHING_INPUTS]):
        yield Finding("warning", facts.recipe.where("quantize.encodings"),
                      f"{crashing[0].name}: {_crash(crashing[0].inputs)}", "export blocks of 32, which load")


def _graphs(facts: Facts) -> Iterator[Finding]:
    limit = snapdragon(facts.chip).graph_bytes
    for part in facts.estimate.parts if facts.estimate is not None else ():
        key, change = _remedy(facts, part, limit)
        if part.weights > limit:
            yield Finding("recipe", facts.recipe.where(key), f"{part.name}: {part.weights >> 20} MiB of weights in one "
                          f"graph, and {facts.chip.name} takes {limit >> 20} MiB a graph", change)
        elif part.weights * _OVER_WEIGHTS > limit:
            yield Finding("warning", facts.recipe.where(key), f"{part.name}: {part.weights >> 20} MiB of weights in "
                          f"one graph; with all else it allocates that may pass the limit, {limit >> 20} MiB", change)


def _remedy(facts: Facts, part: Part, limit: int) -> tuple[str, str]:
    """The recipe's key that a part's size hangs on, and what to set it to."""
    quantize = facts.recipe.quantize
    if part.name == "embedding":
        return "quantize.embedding", "set quantize.embedding to 8" if quantize.embedding > 8 else (
            "its vocabulary is too large for this chip")
    if part.name == "head":
        fewer = [b for b in snapdragon(facts.chip).hexagon.weight_bits if b < quantize.head]
        return "quantize.head", f"set quantize.head to {fewer[-1]}" if fewer else (
            "its vocabulary is too large for this chip")
    return "split.part_bytes", f"set split.part_bytes to {limit // 2}"


def _genie(facts: Facts, folder: Path) -> Iterator[Finding]:
    """Genie's own rules: which RoPE it can compute, and that a reply can end."""
    where, config = str(folder / _CONFIGS[0]), facts.config
    if facts.decoder is not None:
        yield from _rope(where, config, facts.decoder.rotary)
    ends = _ends(config) | _ends(_json(folder / _CONFIGS[1]))
    if not ends and not _json(folder / "tokenizer_config.json").get("eos_token"):
        yield Finding("error", where, "no end-of-sequence token: neither it nor generation_config.json nor "
                      "tokenizer_config.json names one, and Genie pads with it", "state eos_token_id in config.json")
    vocabulary = config.get("vocab_size")
    if isinstance(vocabulary, int) and (outside := sorted(i for i in ends if not 0 <= i < vocabulary)):
        yield Finding("error", where, f"eos_token_id {outside[0]} lies outside the vocabulary of {vocabulary}",
                      "take config.json from the original model")


def _rope(where: str, config: Mapping[str, Any], rotary: int) -> Iterator[Finding]:
    try:
        for rope in genie.rope_parameters(config):
            genie.rope_scaling(rope or None, rotary // 2)
    except UnsupportedError as error:
        yield Finding("error", where, error.message, error.hint)


def _ends(config: Mapping[str, Any]) -> set[int]:
    value = config.get("eos_token_id")
    return {i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int)}


def _json(path: Path) -> dict[str, Any]:
    """A small file beside the weights; empty when it is not there or cannot be read: loading will say so."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
