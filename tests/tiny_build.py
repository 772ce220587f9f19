"""What the tests know of the one tiny build that they share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeforge_runtime.manifest import Manifest

from edgeforge.pipeline import Event


@dataclass(frozen=True)
class Built:
    """A finished build: its bundle, the cache beside it, its recipe file, and what it told."""

    bundle: Path
    cache: Path
    recipe: Path
    events: tuple[Event, ...]

    def artifact(self, stage: str) -> Path:
        """The artifact that the bundle was made from."""
        return self.cache / stage / Manifest.load(self.bundle).stamps[f"stage.{stage}"]
