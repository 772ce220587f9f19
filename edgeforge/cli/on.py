"""--on: which of a bundle's targets a command runs."""

from __future__ import annotations

from pathlib import Path

from edgeforge_runtime.errors import RunError

from edgeforge import backends
from edgeforge.errors import RecipeError

ON = "One of the bundle's targets: cpu, or one that the vendor's emulator runs here (slow; `inspect` lists them)."


def caution(bundle: Path, on: str) -> str:
    """What to know before that target runs here; empty when nothing, or when the bundle cannot be read (running tells).

    Raises:
        RecipeError: the bundle has no such target.
    """
    from edgeforge_runtime.plain import load

    try:
        targets = load(bundle).targets
    except RunError:
        return ""
    if on not in targets:
        raise RecipeError(f"--on {on}: {bundle} has no such target", f"it has {', '.join(sorted(targets))}")
    backends.require_runnable(on, targets[on])
    return backends.caution(targets[on])
