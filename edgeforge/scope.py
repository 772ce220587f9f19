"""What a recipe's model and chip make of its keys: those that say nothing there, and defaults that depend on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgeforge import targets
from edgeforge.errors import RecipeError

if TYPE_CHECKING:
    from edgeforge.document import Document
    from edgeforge.targets import Chip

BEST_WINDOWS = 64
"""SmolLM2, W4 in blocks of 64, weights alone: with 64 instead of 16 KL falls from 0.086 to 0.064 on text of
calibration's kinds, from 0.118 to 0.112 on a novel"""
_DECODERS_ONLY = {
    "target": ("context", "prefill"), "calibrate": ("text", "windows", "samples", "tokens"),
    "quantize": ("head", "kv", "ranges", "embedding", "importance", "transforms"), "split": ("part_bytes",),
    "gates": ("windows", "adapt_db", "transform_db", "quantize_centred_db", "quantize_kl", "quantize_ppl",
              "quantize_flips", "sha_db", "split_db", "wide_db", "shared_bytes")}
"""keys by section that say nothing about a graph without tokens and cache"""
_CODES_ONLY = {
    "quantize": ("kv", "ranges"), "split": ("part_bytes",),
    "gates": ("sha_db", "split_db", "wide_db", "emulator_db")}
"""keys by section that say nothing where float16 flows: the cache is float16, and the graph stays whole"""
_FLOAT16_ONLY = {"gates": ("emitted_db", "emitted_codes_db")}
"""keys by section that say nothing where codes flow: what is compiled is the quantized model's own arithmetic"""
_READ_ONLY = {"gates": ("emitted_codes_db",)}
"""keys by section that say nothing where float16 flows and no product reads codes"""
_CODES, _FLOAT16 = 8, 16
_OF_MAKER = {"apple": ("Apple's chips", ("system", "format", "kv", "package_bytes"))}
"""sections that chips of one maker read (Chip.sections): whose, and their keys"""


def silent(chip: str, decoder: bool) -> dict[tuple[str, str], str]:
    """The keys (section, key) that say nothing about such a model on that chip, and why. decoder: a language model."""
    known = targets.chip(chip)
    profile = known.profile
    none = f"and {chip} is none of them; {targets.LISTED}"
    found: dict[tuple[str, str], str] = {(section, key): f"only for {whose}, {none}"
                                         for section, (whose, keys) in _OF_MAKER.items()
                                         if section not in known.sections for key in keys}
    if not decoder:
        found |= dict.fromkeys(_pairs(_DECODERS_ONLY), "only for language models, and model.onnx is a plain graph")
    if profile.flow == "float16":
        found |= dict.fromkeys(_pairs(_CODES_ONLY), f"only where integer codes flow, and {chip} computes in float16")
        if _CODES not in profile.embeddings:
            found["quantize", "embedding"] = f"only where the table may have 8 bits, and on {chip} it is float16"
        if _CODES not in profile.activation_bits:
            found |= dict.fromkeys(_pairs(_READ_ONLY), f"only where products read 8-bit codes, and on {chip} they "
                                   "read float16")
    else:
        why = f"only where float16 flows, and {chip} computes on integer codes"
        found |= dict.fromkeys(_pairs(_FLOAT16_ONLY), why)
    if not targets.chip(chip).rounded:
        found["gates", "rounded_db"] = f"only for Apple's chips, whose packages are executed here, {none}"
    return found


def refuse(silent: Mapping[tuple[str, str], str], read: Document) -> None:
    """RecipeError for keys that are written down and would do nothing."""
    lines = [f"{read.where(key)}: {'.'.join(key)}: {why}" for key, why in silent.items() if key in read.lines]
    if lines:
        raise RecipeError("\n  ".join([f"recipe {read.path}:", *lines]) if len(lines) > 1 else lines[0],
                          "leave it out" if len(lines) == 1 else "leave them out")


def _pairs(keys: Mapping[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    return [(section, key) for section, names in keys.items() for key in names]


def with_defaults(raw: Any) -> Any:
    """The data of a recipe file, with what its quality and its chip stand for where it says nothing itself. What is
    not as it should be is left for the recipe's own law."""
    if not isinstance(raw, dict) or not isinstance(raw.get("model"), str):
        return raw
    options, calibrate, gates = (raw.get(section, {}) for section in ("quantize", "calibrate", "gates"))
    if not all(isinstance(section, dict) for section in (options, calibrate, gates)):
        return raw
    made = dict(raw)
    if options.get("quality") == "best":
        made["calibrate"] = {"windows": BEST_WINDOWS} | calibrate
    chip = _chip(raw.get("target"))
    if chip is not None and chip.profile.flow == "float16":
        made["quantize"] = _of_float16(chip, options) | options
    if chip is not None and chip.shared_bytes is not None:
        made["gates"] = {"shared_bytes": chip.shared_bytes} | gates
    return made


def _chip(target: Any) -> Chip | None:
    name = target.get("chip") if isinstance(target, dict) else None
    return targets.CHIPS.get(name) if isinstance(name, str) else None


def _of_float16(chip: Chip, options: dict[str, Any]) -> dict[str, Any]:
    """What quantize holds where float16 flows, if not what it holds elsewhere."""
    whole = options.get("weights") == _FLOAT16 and options.get("head", _FLOAT16) == _FLOAT16
    plain = whole and not options.get("exceptions")
    whole_numbers = options.get("activations") == _CODES and options.get("eight_bits") != "fp8"
    transforms = [*chip.profile.transforms, *(["split_outliers"] if whole_numbers else [])]
    found: dict[str, Any] = {"transforms": [] if plain else transforms}
    return found | ({"head": _FLOAT16} if options.get("weights") == _FLOAT16 else {})
