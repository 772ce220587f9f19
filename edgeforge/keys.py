"""What an artifact depends on, as one hash: its sources, the recipe's part, the code, the tools, the threads."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Iterable
from pathlib import Path

from edgeforge import backends, closure, source
from edgeforge.build import Build
from edgeforge.calibrate import sources
from edgeforge.errors import RecipeError
from edgeforge.recipe import Recipe
from edgeforge.stages.plan import Stage

_KNOWN_OTHERWISE = frozenset({"edgeforge.recipe", "edgeforge.sections", "edgeforge.errors"})
"""modules that cannot change an artifact but through what is hashed already: the recipe's values"""
_PATHS = {"text", "encodings"}
"""keys of sections that name a file: what it holds counts, not where it lies"""


def key(stage: Stage, job: Build, keys: dict[str, str]) -> str:
    """sha256 (hex) of everything that the stage's artifact is made from.

    Args:
        keys: the keys of the stages before it.

    Raises:
        RecipeError: a file that the recipe names cannot be read.
    """
    parts = stage.keys(job.recipe)
    facts = {
        "stage": stage.name, "needs": {name: keys[name] for name in stage.needs},
        "recipe": [p.model_dump(mode="json", exclude=_PATHS) if hasattr(p, "model_dump") else p for p in parts],
        "code": code(stage, job.chip.backend), "tools": versions(stage, job.chip.backend), "threads": job.threads,
        "profile": repr(job.profile), "chip": repr(job.chip) if stage.vendor else None,
        "python": platform.python_version(),
        "source": [job.source.name, job.source.fingerprint()] if not stage.needs else None,
        "whence": [source.place(job.source), source.revision(job.source), str(job.recipe.calibrate.text),
                   str(job.recipe.quantize.encodings)] if stage.whence else None,
        "text": text(job.recipe) if job.recipe.calibrate in parts else None,
        "encodings": encodings(job.recipe) if job.recipe.quantize in parts else None,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def code(stage: Stage, backend: str) -> str:
    """sha256 over the stage's sources, the vendor's too where the stage calls it."""
    return closure.digest(roots(stage, backend), _KNOWN_OTHERWISE)


def roots(stage: Stage, backend: str) -> list[str]:
    """The modules where the stage's code begins."""
    vendor = f"edgeforge.backends.{backend}.backend" if stage.vendor else ""
    return [name for name in (stage.module, stage.opens, vendor) if name]


def text(recipe: Recipe) -> str | None:
    """sha256 of the recipe's own calibration text, and the ending by which it is read; None for the built-in mix,
    which Python's version stands for."""
    path: Path | None = recipe.calibrate.text
    found = _contents(recipe, "calibrate.text", path, "give the path of a UTF-8 text file")
    return found + sources.form(path) if found is not None and path is not None else None


def encodings(recipe: Recipe) -> str | None:
    """sha256 of the recipe's foreign encodings; None without."""
    return _contents(recipe, "quantize.encodings", recipe.quantize.encodings, "give the path of AIMET's .encodings")


def _contents(recipe: Recipe, key: str, path: Path | None, change: str) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path is not None else None
    except OSError as error:
        raise RecipeError(f"{recipe.where(key)}: {path}: {error.strerror}", change) from error


def versions(stage: Stage, backend: str) -> dict[str, str | None]:
    """Installed versions of the distributions that the stage runs; None for one that is not there."""
    vendors = backends.backend(backend).decisive if stage.vendor else ()
    return installed(("edgeforge-runtime", *stage.tools, *vendors))


def installed(distributions: Iterable[str]) -> dict[str, str | None]:
    """Their versions, None for what is not there."""
    found: dict[str, str | None] = {}
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found
