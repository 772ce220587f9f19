"""What a budget bought: precision.json, and the recipe that builds the same without a budget."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeforge import show
from edgeforge.quantize import exceptions
from edgeforge.quantize.budget import HIGH, LOW, Choice
from edgeforge.recipe import Recipe
from edgeforge.sections import Budget

FILE, RECIPE = "precision.json", "recipe.mixed.yaml"


def explicit(recipe: Recipe, raised: Sequence[str]) -> Recipe:
    """recipe with its budget spent: the weights called raised have 8 bits."""
    options = recipe.quantize
    named = options.exceptions | {exceptions.pattern(name): HIGH for name in raised}
    return recipe.model_copy(update={"quantize": options.model_copy(update={"budget": None, "exceptions": named})})


def save(out: Path, wanted: Budget, choices: Sequence[Choice], raised: int, bits: float,
         tried: Mapping[int, float]) -> None:
    """Writes every weight's bits and what they were chosen from.

    Args:
        choices: the first `raised` of them have 8 bits. bits: a weight, on average. tried: KL by how many were raised.
    """
    rows = [{"name": c.name, "count": c.count, "bits": HIGH if i < raised else LOW, "loss_4": c.loss[0],
             "loss_8": c.loss[1], "stored_4": c.stored[0], "stored_8": c.stored[1]} for i, c in enumerate(choices)]
    raw: dict[str, Any] = {"budget": wanted.model_dump(exclude_none=True), "bits_per_weight": bits, "raised": raised,
                           "fits": [{"raised": k, "kl": kl} for k, kl in tried.items()], "weights": rows}
    (out / FILE).write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")


def names(folder: Path) -> list[str]:
    """The weights that have 8 bits in the artifact that holds a precision.json."""
    raw = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return [row["name"] for row in raw["weights"][:raw["raised"]]]


def bundle(recipe: Recipe, source: Path, out: Path) -> None:
    """Copies precision.json from a quantize artifact, and writes recipe.mixed.yaml; nothing without a budget.

    That recipe's paths are absolute, and it names what later stages read, too: so it is the bundle's, not the
    artifact's, which other recipes may share.
    """
    if recipe.quantize.budget is None:
        return
    shutil.copyfile(source / FILE, out / FILE)
    beside = recipe.out.with_name(f"{recipe.out.name}-mixed")  # a build into its own bundle would delete the recipe
    made = explicit(recipe, names(source)).model_copy(update={"out": beside})
    (out / RECIPE).write_text(show.as_yaml(made), encoding="utf-8")
