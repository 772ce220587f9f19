"""Refuse early: all that a recipe, a checkpoint's headers and a chip let us know, before the first minute of work.

A guard that refuses valid work is as wrong as one that lets the impossible through: what is not certain (memory,
disk) is a warning.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgeforge import formats, given, mismatch, places, source, targets
from edgeforge.adapt import shape
from edgeforge.backends import backend
from edgeforge.checkpoint import Checkpoint
from edgeforge.errors import EXIT_ERROR, EXIT_USAGE, EdgeForgeError, RecipeError, UnsupportedError
from edgeforge.estimate import Estimate, below_head, estimate, product_inputs
from edgeforge.findings import Facts, Finding, blockers
from edgeforge.memory import memory
from edgeforge.quantize import budget, exceptions
from edgeforge.recipe import Recipe
from edgeforge.sections import Quantize
from edgeforge.source import Source


@dataclass(frozen=True)
class Report:
    """What was looked at and what was found."""

    facts: Facts
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """0 when a build may start, 2 when the recipe has to change, 1 for everything else."""
        kinds = {f.severity for f in blockers(self.findings)}
        return EXIT_USAGE if "recipe" in kinds else EXIT_ERROR if kinds else 0


def examine(recipe: Recipe, allow_pickle: bool = False) -> Report:
    """Looks at everything, and never raises for what a person can mend. allow_pickle: see `open_checkpoint`."""
    broken = list(places.model(recipe))
    found: Source | None = None
    try:
        found = None if broken else open_model(recipe, allow_pickle)
    except EdgeForgeError as error:
        broken.append(Finding.of(error))
    broken += places.out(recipe)
    report = _report(recipe, found)
    return replace(report, findings=(*broken, *report.findings))


def require_places(recipe: Recipe) -> None:
    """Raises RecipeError: a file that the recipe names is not there, or its `out` cannot be made."""
    _refuse([*places.model(recipe), *places.out(recipe)])


def open_model(recipe: Recipe, allow_pickle: bool = False) -> Source:
    """`open_source` of what the recipe names; a RecipeError comes with the recipe's line."""
    try:
        return source.open_source(recipe.model, allow_pickle)
    except RecipeError as error:
        key = "model.calibration"  # an .npz is all of a model that is written for one recipe
        raise RecipeError(f"{recipe.where(key)}: {error.message.removeprefix(f'{key}: ')}", error.hint) from error


def require(recipe: Recipe, found: Source, warn: Callable[[str], None]) -> None:
    """Lets a build begin, or not.

    Raises:
        RecipeError: the recipe asks for what cannot be; UnsupportedError: model or machine cannot. All of it, at once.
    """
    report = _report(recipe, found)
    for finding in report.findings:
        if finding.severity == "warning":
            warn(f"{finding}; {finding.change}" if finding.change else str(finding))
    _refuse(list(blockers(report.findings)))


def _refuse(wrong: Sequence[Finding]) -> None:
    """Raises all of it as one error; nothing to raise is fine."""
    kind = RecipeError if any(f.severity == "recipe" for f in wrong) else UnsupportedError
    if len(wrong) == 1:
        raise kind(str(wrong[0]), wrong[0].change)
    if wrong:
        lines = [f"\n  {f}" + (f"\n    {f.change}" if f.change else "") for f in wrong]
        raise kind(f"{len(wrong)} things stand against this build:{''.join(lines)}")


def _report(recipe: Recipe, found: Source | None) -> Report:
    chip = targets.chip(recipe.target.chip)
    findings = [*given.text(recipe, found), *_widths(recipe), *formats.check(recipe)]
    wrong, foreign = given.foreign(recipe)
    findings += wrong
    facts = Facts(recipe, chip, None, {}, foreign=foreign)
    if isinstance(found, Checkpoint):
        config = found.config
        facts = replace(facts, folder=found.folder, config=config)
        findings += _context(recipe, config)
        try:
            decoder = _decoder(recipe, config)
        except UnsupportedError as error:
            findings.append(Finding("error", str(found.config_file), error.message, error.hint))
        else:
            sizes = estimate(recipe, decoder, found.tensors) if decoder is not None else None
            findings += mismatch.check(found, decoder) if decoder is not None else ()
            findings += _sizes(recipe, found, sizes)
            findings += _blocks(recipe, found)
            findings += _precision(recipe, found)
            facts = replace(facts, decoder=decoder, estimate=sizes)
    elif found is not None:
        findings += given.samples(recipe, found.samples)
    return Report(facts, (*findings, *backend(chip.backend).check(facts)))


def _decoder(recipe: Recipe, config: Mapping[str, Any]) -> shape.Decoder | None:
    """None where config.json leaves a size to the model's default, which transformers knows, or states nonsense."""
    profile = targets.chip(recipe.target.chip).profile
    try:
        found = shape.decoder(shape.as_config(config), profile, recipe.target.context)
    except (AttributeError, TypeError, ValueError, ZeroDivisionError):
        return None
    sizes = (found.layers, found.heads, found.kv_heads, found.head_dim, found.hidden, found.vocab)
    return found if all(isinstance(size, int) and size > 0 for size in sizes) else None


def _widths(recipe: Recipe) -> Iterator[Finding]:
    target = recipe.target
    if recipe.decoder and target.context < target.least_context:
        least, most = target.least_context, target.most_prefill
        yield Finding("recipe", recipe.where("target.context"), f"context {target.context} is too short: the gates "
                      f"read two chunks of prefill {target.prefill} and a few single steps, at least {least} tokens",
                      f"set target.context to {least} or more" + (
                          f", or target.prefill to {most} or less" if most > 1 else ""))


def _context(recipe: Recipe, config: Mapping[str, Any]) -> Iterator[Finding]:
    limit, context = config.get("max_position_embeddings"), recipe.target.context
    if isinstance(limit, int) and context > limit:
        yield Finding("recipe", recipe.where("target.context"), f"{context} tokens, and the model was made for {limit}",
                      f"set target.context to {limit} or less")
    if "tokens" in recipe.calibrate.model_fields_set and recipe.calibrate.tokens > context:
        yield Finding("warning", recipe.where("calibrate.tokens"), f"pieces of {recipe.calibrate.tokens} tokens, and "
                      f"the context holds {context}: as many are read", "set target.context higher, or leave it so")


def _sizes(recipe: Recipe, found: Checkpoint, sizes: Estimate | None) -> Iterator[Finding]:
    if sizes is None:
        yield Finding("warning", str(found.folder), "sizes were not estimated: config.json leaves some to the model's "
                      "defaults, or the tensors are not named as a decoder's are")
        return
    limit = recipe.split.part_bytes
    if targets.chip(recipe.target.chip).profile.flow == "codes" and sizes.layer > limit:
        yield Finding("recipe", recipe.where("split.part_bytes"),
                      f"one layer holds {sizes.layer:,} bytes of weights, the limit a part is {limit:,}",
                      f"set split.part_bytes to {sizes.layer * 11 // 10} or more, or take fewer bits a weight")
    yield from _memory(recipe, sizes)
    yield from _disk(recipe, sizes)


def _blocks(recipe: Recipe, found: Checkpoint) -> Iterator[Finding]:
    """The products whose inputs no whole number of blocks holds; each is a fallback that the recipe declares."""
    block = recipe.quantize.block
    odd = {} if block is None else {name: inputs for name, inputs in product_inputs(found.tensors).items()
                                    if inputs % block}
    if odd:
        name, inputs = next(iter(odd.items()))
        others = f", and so have {len(odd) - 1} more" if len(odd) > 1 else ""
        yield Finding("warning", recipe.where("quantize.block"), f"{name} has {inputs} inputs, which blocks of {block} "
                      f"do not divide{others}: one scale an output channel there",
                      ("take smaller blocks, or leave it so" if block is not None and block > 16 else
                       "16 is the smallest block: leave it so") + "; the report lists them")


def _precision(recipe: Recipe, found: Checkpoint) -> Iterator[Finding]:
    """Exceptions that match nothing, and a budget below what 4 bits and their scales take. Names are the checkpoint's:
    adapt splits some fused weights, so a stranger is a warning here, and an error once the graph is there. What
    foreign encodings take of a budget is known only then, too."""
    for pattern, near in exceptions.unmatched(recipe.quantize.exceptions, product_inputs(found.tensors)).items():
        yield Finding("warning", recipe.where("quantize.exceptions"), f"no product's weight is called {pattern}" + (
            f"; the nearest is {near}" if near else ""), "correct it, unless it names a part of a fused weight")
    half = targets.chip(recipe.target.chip).profile.flow == "float16"
    wanted, least = recipe.quantize.budget, _least_bits(recipe.quantize, below_head(found.tensors), half)
    if recipe.quantize.encodings is None and wanted is not None and wanted.bits_per_weight is not None and (
            wanted.bits_per_weight < least):
        yield Finding("recipe", recipe.where("quantize.budget.bits_per_weight"), f"{wanted.bits_per_weight:g} bits a "
                      f"weight, and 4 bits, their scales and the exceptions already take {least:.3f} in this model",
                      f"set it to {least + 0.01:.2f} or more, or leave the budget out")


def _least_bits(options: Quantize, products: Mapping[str, tuple[int, int]], half: bool) -> float:
    """Bits a weight before a budget gives any more. half: steps are float16."""
    stored = 0
    for name, (outputs, inputs) in products.items():
        bits = exceptions.bits(name, options.exceptions) or options.weights
        blocks = bits == 4 and options.block is not None and inputs % options.block == 0
        stored += budget.stored_bits(inputs, outputs, bits, options.block if blocks else None, half)
    return stored / max(sum(o * i for o, i in products.values()), 1)


def _memory(recipe: Recipe, sizes: Estimate) -> Iterator[Finding]:
    """Certain: the float32 model is held whole. Likely: what SmolLM2-135M's build took, scaled."""
    here = memory()
    have = here.total + here.swap
    if sizes.float32 > have:
        yield Finding("error", str(recipe.model), f"the model in float32 takes {_gib(sizes.float32)} of memory, "
                      f"and there are {_gib(have)} here with swap",
                      "build with more memory (in a container: raise its limit)")
    elif sizes.memory > here.free:
        yield Finding("warning", str(recipe.model), f"the build may take {_gib(sizes.memory)} of memory, and "
                      f"{_gib(here.free)} are free", "close other programs, or add swap")


def _disk(recipe: Recipe, sizes: Estimate) -> Iterator[Finding]:
    """A warning only: stages that are cached already need no room."""
    folder = next(p for p in (recipe.out, *recipe.out.parents) if p.is_dir())
    free = shutil.disk_usage(folder).free
    if sizes.disk > free:
        yield Finding("warning", recipe.where("out"), f"all stages together may take {_gib(sizes.disk)} of disk, and "
                      f"{_gib(free)} are free at {folder}", "free some, or choose another `out`")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def rows(facts: Facts) -> list[dict[str, Any]]:
    """The estimates as a table: part, MiB of weights, cache and logits, and what one graph may allocate."""
    found, limit = facts.estimate, facts.chip.graph_bytes
    return [] if found is None else [
        {"part": p.name, "weights_mib": _mib(p.weights), "kv_mib": _mib(p.kv), "logits_mib": _mib(p.logits),
         "limit_mib": limit and limit >> 20} for p in found.parts]


def _mib(size: int) -> float:
    return round(size / 2**20, 1)
