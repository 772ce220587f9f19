"""A model under a budget: which of its 4-bit weights get 8 bits, tried and written down.

For `bits_per_weight` the ranking of quantize/budget.py says it all. For `kl` up to four models are fitted, each with
more or fewer of the ranking's weights raised, and measured as the gate measures: one number is chosen by what the
gate's windows say, so their KL flatters that choice a little.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from edgeforge import precision
from edgeforge.build import Build
from edgeforge.encoding import Encoding
from edgeforge.errors import RecipeError, UnsupportedError
from edgeforge.gates import Check
from edgeforge.graph import edit
from edgeforge.quantize import budget, footprint, roles, sensitivity, weight_grids
from edgeforge.quantize.budget import HIGH, Choice
from edgeforge.quantize.walk import Sample
from edgeforge.quantize.weights.grid import Grid
from edgeforge.sections import Budget

_SHOWN = 6

Make = Callable[[Build, Path], tuple[list[Check], float]]
"""Writes the artifact of build's recipe, exceptions included, into a folder; its checks, and its KL (nats)."""


def run(build: Build, model: ir.Model, samples: Sequence[Sample], given: Mapping[str, Encoding], make: Make,
        out: Path) -> list[Check]:
    """make's artifact in out: of the recipe as it is, or of the bits that its budget buys, with precision.json.

    given: grids by name that are settled; a budget leaves these weights alone, as it does exceptions.
    """
    options = build.recipe.quantize
    if options.budget is None:
        return make(build, out)[0]
    decoder = build.recipe.decoder
    grids = weight_grids.candidates(model.graph, options, decoder, given, build.profile.flow)
    try:
        choices = sensitivity.choices(model, samples, grids, decoder, build.say)
    except UnsupportedError as error:
        raise RecipeError(f"{build.recipe.where('quantize.budget')}: what each weight's bits are worth cannot be "
                          f"measured: {error.message}", "leave the budget out, and say in quantize.exceptions which "
                          f"weights get {HIGH} bits; or {error.hint}") from error
    ranking = budget.rank(choices)
    fixed, count = _fixed(model.graph, build, given)
    count = max(count + sum(c.count for c in choices), 1)
    bits = fixed + sum(c.stored[0] for c in choices)
    tried: dict[int, float] = {}
    if options.budget.kl is None:
        raised = _affordable(build, options.budget, ranking, bits, count)
        checks, _ = make(raise_bits(build, ranking[:raised]), out)
    else:
        raised, checks = _reach(build, options.budget.kl, budget.left(choices, ranking), ranking, make, out, tried)
    bits += sum(c.added for c in ranking[:raised])
    ordered = [*ranking, *(c for c in choices if c not in ranking)]
    precision.save(out, options.budget, ordered, raised, bits / count, tried)
    return [*checks, *_report(options.budget, ranking[:raised], len(choices), bits / count, tried)]


def raise_bits(build: Build, raised: Sequence[Choice]) -> Build:
    """The build of the explicit recipe: no budget, an exception for each weight of raised."""
    return dataclasses.replace(build, recipe=precision.explicit(build.recipe, [c.name for c in raised]))


def _fixed(graph: ir.Graph, build: Build, given: Mapping[str, Encoding]) -> tuple[int, int]:
    """Stored bits, and how many weights, of those that exceptions or given grids decide or no search fits; the head's
    is nobody's budget."""
    options, decoder, flow = build.recipe.quantize, build.recipe.decoder, build.profile.flow
    half = flow == "float16"
    top = weight_grids.head(graph) if decoder else None
    free = weight_grids.candidates(graph, options, decoder, given, flow)
    fixed = {name: grid for name, grid in weight_grids.choose(graph, options, decoder, given, flow).items()
             if name not in free and name != top}
    fixed |= {name: Grid(bits, half=half) for name, bits in weight_grids.outside(graph, options, given, flow).items()}
    bits = count = 0
    for name, value in roles.weights(graph).items():
        shape = [int(d) for d in edit.known_dims(value)]
        size, outputs = math.prod(shape), shape[roles.weight_axis(value) or 0]
        if name in given and name != top:
            bits += footprint.stored_bits(size, given[name])
        elif name in fixed:
            bits += budget.stored_bits(size // outputs, outputs, fixed[name].bits, fixed[name].block, half)
        else:
            continue
        count += size
    return bits, count


def _affordable(build: Build, wanted: Budget, ranking: Sequence[Choice], bits: int, count: int) -> int:
    room = int((wanted.bits_per_weight or 0) * count) - bits
    if room < 0:
        where = build.recipe.where("quantize.budget.bits_per_weight")
        raise RecipeError(f"{where}: {wanted.bits_per_weight:g} bits a weight, and 4 bits, their scales, exceptions "
                          f"and what no search fits already take {bits / count:.3f}",
                          f"set it to {bits / count + 0.01:.2f} or more, or leave the budget out")
    return budget.affordable(ranking, room)


def _reach(build: Build, target: float, losses: Sequence[float], ranking: Sequence[Choice], make: Make, out: Path,
           tried: dict[int, float]) -> tuple[int, list[Check]]:
    """Leaves in out what the search chose. Of the models that it fits, only the best so far stays on disk."""
    kept: dict[int, list[Check]] = {}
    with tempfile.TemporaryDirectory(dir=out) as scratch:

        def measure(raised: int) -> float:
            build.say(f"fit {len(tried) + 1}: {raised} of {len(ranking)} weights at {HIGH} bits")
            folder = Path(scratch) / str(raised)
            folder.mkdir()
            kept[raised], tried[raised] = make(raise_bits(build, ranking[:raised]), folder)
            best = budget.best(tried, target)
            for worse in [k for k in kept if k != best]:
                del kept[worse]
                shutil.rmtree(Path(scratch) / str(worse))
            return tried[raised]

        raised = budget.search(losses, target, measure)
        for path in sorted((Path(scratch) / str(raised)).iterdir()):
            shutil.move(path, out / path.name)
    return raised, kept[raised]


def _report(wanted: Budget, raised: Sequence[Choice], count: int, bits: float, tried: dict[int, float]) -> list[Check]:
    names = ", ".join(c.name for c in raised[:_SHOWN]) + (
        f" and {len(raised) - _SHOWN} more: {precision.FILE}" if len(raised) > _SHOWN else "")
    checks = [Check(f"quantize: weights raised to {HIGH} bits", len(raised), f"of {count}", note=names),
              Check("quantize: bits a weight, head apart", bits, "bits", wanted.bits_per_weight, "at most")]
    if wanted.kl is not None:
        reached = tried[len(raised)]
        note = f"{len(tried)} fits: " + ", ".join(f"{k} raised {kl:.4g}" for k, kl in tried.items())
        checks.append(Check("quantize: KL under the budget", reached, "nats", wanted.kl, "at most", note))
    return checks
