"""What every stage knows about the build it serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgeforge.checkpoint import Checkpoint
from edgeforge.recipe import Recipe
from edgeforge.targets import Chip, Profile


@dataclass(frozen=True)
class Build:
    """recipe and checkpoint, the chip that the recipe names, and how to tell a person what goes on."""

    recipe: Recipe
    checkpoint: Checkpoint
    chip: Chip
    threads: int
    say: Callable[[str], None]

    @property
    def profile(self) -> Profile:
        return self.chip.profile

    @property
    def widths(self) -> list[int]:
        """AR of the compiled graphs, widest first."""
        return [self.recipe.target.prefill, 1]

    @property
    def context(self) -> int:
        return self.recipe.target.context
