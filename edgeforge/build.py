"""What every stage knows about the build it serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:  # what a stage runs is read off its imports (closure.py); it reads more than it runs
    from edgeforge.checkpoint import Checkpoint
    from edgeforge.onnx_source import OnnxSource
    from edgeforge.recipe import Recipe
    from edgeforge.source import Source
    from edgeforge.targets import Chip, Profile

STAMP = "stage.json"
"""in every finished artifact: what made it, from what, how long it took"""
DATA = "data.json"
"""in the artifact that holds or read the calibration data: how much there is, and its sha256"""
HASHES = "hashes"
"""in data.json of a language model's text: for each window, hex of 8-byte hashes of its runs of words"""


@dataclass(frozen=True)
class Build:
    """recipe and what it starts from, the chip that it names, and how to tell a person what goes on."""

    recipe: Recipe
    source: Source
    chip: Chip
    threads: int
    say: Callable[[str], None]
    key: str = ""
    """of the stage that runs, which alone is what it makes"""

    @property
    def checkpoint(self) -> Checkpoint:
        """What the stages of a language model start from."""
        return cast("Checkpoint", self.source)

    @property
    def onnx(self) -> OnnxSource:
        """What the stages of a plain graph start from."""
        return cast("OnnxSource", self.source)

    @property
    def profile(self) -> Profile:
        return self.chip.profile

    @property
    def widths(self) -> list[int]:
        """AR of the compiled graphs, widest first."""
        return [self.recipe.target.prefill, 1]

    @property
    def cache(self) -> Path:
        """Where finished stages lie: beside the bundle, shared by all bundles there."""
        return self.recipe.out.parent / ".edgeforge"

    @property
    def locks(self) -> Path:
        """Where the files lie that keep two builds from making one artifact at once."""
        return self.cache / "locks"

    @property
    def failures(self) -> Path:
        """Where a compiler that failed leaves its log and what reruns it alone; other builds here have their own."""
        return self.cache / "failed" / self.key[:12]

    @property
    def context(self) -> int:
        return self.recipe.target.context
