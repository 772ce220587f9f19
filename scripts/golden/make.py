"""Writes test_vectors/maths and test_vectors/models anew: `python scripts/golden/make.py`.

Run it after a formula changed, never to make a failing test pass: the values come from the formulas here and from
transformers, not from edgeforge.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import maths

import models
from edgeforge.vectors import format as sets

PLACE = Path(__file__).parents[2] / "test_vectors"


def main(place: Path = PLACE) -> None:
    """Both sets below place."""
    sets.write(place / "maths", "maths", {"mpmath": importlib.metadata.version("mpmath")}, maths.graphs())
    versions = {tool: importlib.metadata.version(tool) for tool in ("transformers", "torch")}
    sets.write(place / "models", "tiny decoders", versions, models.graphs())


if __name__ == "__main__":
    main()
