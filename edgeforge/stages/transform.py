"""transform: exact rewrites of parameters that make values easier to quantize. Still float, same function."""

from __future__ import annotations

from pathlib import Path

from edgeforge_runtime.manifest import Manifest

from edgeforge import artifact
from edgeforge.gates import Check
from edgeforge.graph import store
from edgeforge.quantize import rotate
from edgeforge.stages import adapt
from edgeforge.stages.build import Build


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Applies the recipe's quantize.transforms in order."""
    source = sources["optimize"]
    artifact.carry(source, out)
    Manifest.load(source).save(out)
    if not build.recipe.quantize.transforms:
        artifact.copy_model(source, out)
        return []
    model = store.load(source)
    for name in build.recipe.quantize.transforms:
        build.say(name)
        _TRANSFORMS[name](model)
    store.save(model, out)
    return adapt.gate(build, out, sources["adapt"] / adapt.REFERENCE, "transform", build.recipe.gates.optimize_db)


_TRANSFORMS = {"rotate": rotate.rotate}
