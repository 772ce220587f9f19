"""What TensorRT does not do for a GPU, told before any work: nothing here compiles or imports it."""

from __future__ import annotations

from collections.abc import Iterator

from edgeforge.backends.health import Card
from edgeforge.backends.tensorrt import wheel
from edgeforge.errors import CompilerError, UnsupportedError
from edgeforge.findings import Facts, Finding
from edgeforge.recipe import Recipe
from edgeforge.targets import Chip, Gpu

_FOUR, _EIGHT = 4, 8
_HEADS = range(16, 257, 8)
"""sizes of heads with an attention kernel: TensorRT-RTX 1.7.1 builds 16, 24, 64, 72, 80, 88, 96, 128, 192 and 256, and
not 8, 12, 20, 28, 250, 264, 320 and 512; those of them that were tried for all its GPUs are alike for all"""
_SOFT_CAP = "attn_logit_softcapping"
"""attention with it is several kernels, whatever its heads"""


def gpu(chip: Chip) -> Gpu:
    """The chip as a GPU; UnsupportedError: it is none."""
    if not isinstance(chip, Gpu):
        raise UnsupportedError(f"{chip.name} is no GPU of NVIDIA's", "TensorRT builds for those alone")
    return chip


def compute(chip: Gpu) -> tuple[str, ...]:
    """TensorRT's names of the chip's compute capabilities; none where the builder takes the GPU that it finds."""
    return tuple(f"SM{sm}" for sm in chip.sms) if wheel.find().edition.crosses else ()


def builds_here(chip: Gpu) -> bool:
    """Is an engine made here: for a GPU that is built for anywhere, or by the edition that takes this machine's own?"""
    if chip.cross:
        return True
    try:
        return not wheel.find().edition.crosses
    except CompilerError:
        return False


def elsewhere(chip: Gpu) -> str:
    """What to do where none is."""
    return (f"TensorRT-RTX does not build for compute capability {_capabilities(chip)}; device/onnx/build_engine.sh of "
            "the bundle builds the engine where the GPU is")


def check(facts: Facts) -> Iterator[Finding]:
    """Everything that stands against this recipe on this GPU, as far as it can be known."""
    chip = gpu(facts.chip)
    yield from _formats(facts.recipe, chip)
    if chip.cross and facts.decoder and facts.decoder.head_dim not in _HEADS and not facts.config.get(_SOFT_CAP):
        yield Finding("error", "model", f"its heads have {facts.decoder.head_dim} numbers, and TensorRT for RTX has "
                      f"attention kernels for {_HEADS[0]} to {_HEADS[-1]}, in steps of {_HEADS.step}",
                      "take a model with such heads")
    try:
        found = wheel.find()
    except CompilerError as error:
        if chip.cross:
            yield Finding("error", wheel.DISTRIBUTION, error.message, error.hint)
        return
    yield from _builder(facts.recipe, chip, found)


def _formats(recipe: Recipe, chip: Gpu) -> Iterator[Finding]:
    """Numbers that one of the chip's GPUs has no product for."""
    asked = recipe.quantize
    if not chip.int4 and (key := asked.giver(_FOUR)):
        yield Finding("recipe", recipe.where(f"quantize.{key}"), f"4-bit weights, which TensorRT does not build for "
                      f"{chip.name} ({_capabilities(chip)})", f"set quantize.{key} to 8 and quantize.activations to 8, "
                      f"or quantize.{key} to 16, or take a GPU from Ampere (8.0) on")
    if not chip.int8_alone and asked.activations > _EIGHT and (key := asked.giver(_EIGHT)):
        yield Finding("recipe", recipe.where(f"quantize.{key}"), "8-bit weights that float16 multiplies, some of "
                      f"which {chip.name} ({_capabilities(chip)}) unpacks to float16 before their product (o_proj)",
                      f"set quantize.activations to 8, or quantize.{key} to 16, or take a GPU from Ampere (8.0) on")
    if not chip.fp8 and asked.fp8:
        yield Finding("recipe", recipe.where("quantize.eight_bits"), f"fp8, and {chip.name} ({_capabilities(chip)}) "
                      "has no products of it before compute capability 8.9",
                      "set quantize.eight_bits to int8, or take a GPU from Ada (8.9) on")


def _builder(recipe: Recipe, chip: Gpu, found: wheel.Found) -> Iterator[Finding]:
    """What the TensorRT that is here does not do for the chip."""
    if found.edition is wheel.RTX and found.version != wheel.TESTED:
        yield Finding("warning", found.edition.module, f"version {found.version} is installed, {wheel.TESTED} was "
                      "tested", f"pip install {wheel.DISTRIBUTION}=={wheel.TESTED}")
    if not chip.cross and found.edition.crosses:
        yield Finding("warning", recipe.where("target.chip"), elsewhere(chip), "copy the bundle there and run it")
    if found.edition is wheel.ENTERPRISE:
        yield Finding("warning", recipe.where("target.chip"), f"{found.edition.module} builds for the GPU of this "
                      f"machine, which has to be a {chip.name}", wheel.INSTALL)


def card(chip: Chip) -> Card:
    """The GPU as TensorRT sees it."""
    mine = gpu(chip)
    formats = ["float16", "int8" if mine.int8_alone else "int8 by int8", *(["int4 in blocks"] if mine.int4 else []),
               *(["fp8"] if mine.fp8 else [])]
    where = "engine built anywhere" if mine.cross else "engine built on the device only"
    return Card(f"compute capability {_capabilities(mine)}; {', '.join(formats)}; {where}",
                {"compute": [f"{sm // 10}.{sm % 10}" for sm in mine.sms], "int4": mine.int4,
                 "int8_alone": mine.int8_alone, "fp8": mine.fp8, "cross": mine.cross})


def _capabilities(chip: Gpu) -> str:
    return ", ".join(f"{sm // 10}.{sm % 10}" for sm in chip.sms)
