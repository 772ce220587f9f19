"""What a check of recipe, checkpoint and chip has found before any work, and the facts that it looks at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgeforge.adapt.shape import Decoder
from edgeforge.errors import EXIT_USAGE, EdgeForgeError
from edgeforge.estimate import Estimate
from edgeforge.recipe import Recipe
from edgeforge.targets import Chip

if TYPE_CHECKING:
    from edgeforge.export.aimet_file import Glance


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or may turn out wrong (warning): where, what with its limit, and what to change.

    severity: `recipe` and `error` stop a build; the first can be mended in the recipe.
    """

    severity: Literal["recipe", "error", "warning"]
    where: str
    what: str
    change: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what

    @classmethod
    def of(cls, error: EdgeForgeError) -> Finding:
        """An exception as a finding."""
        return cls("recipe" if error.exit_code == EXIT_USAGE else "error", "", error.message, error.hint)


@dataclass(frozen=True)
class Facts:
    """What is known before any work. folder is the checkpoint's, None when it cannot be opened; config is config.json
    as it stands, empty likewise; decoder and estimate are None when the checkpoint does not give them. foreign: what
    quantize.encodings holds.
    """

    recipe: Recipe
    chip: Chip
    folder: Path | None
    config: Mapping[str, Any]
    decoder: Decoder | None = None
    estimate: Estimate | None = None
    foreign: tuple[Glance, ...] = ()


def blockers(findings: tuple[Finding, ...]) -> Iterator[Finding]:
    """Those that stop a build."""
    return (f for f in findings if f.severity != "warning")
