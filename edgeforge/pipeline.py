"""A build: the stages in order, each found finished or run, measured and kept."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
from edgeforge_runtime.errors import RunError

from edgeforge import __version__, cache, checkpoint, gates, onnx_source, targets
from edgeforge.build import STAMP, Build
from edgeforge.errors import EdgeForgeError, RecipeError
from edgeforge.gates import Check
from edgeforge.peak import TreePeak
from edgeforge.recipe import OnnxModel, Recipe
from edgeforge.stages.plan import Stage, plan


@dataclass(frozen=True)
class Event:
    """What happened to a stage: it was found, began, reports a step, is done, or fell short of its gate."""

    stage: str
    kind: Literal["cached", "started", "step", "done", "failed"]
    text: str = ""
    seconds: float = 0.0
    peak_mib: int = 0
    checks: tuple[Check, ...] = ()


def build(recipe: Recipe, tell: Callable[[Event], None], threads: int | None = None) -> Path:
    """Builds the bundle; returns its folder.

    Raises:
        EdgeForgeError: anything a person can act on; GateError when a stage lost more than allowed.
    """
    found = (onnx_source.open_source(recipe.model) if isinstance(recipe.model, OnnxModel)
             else checkpoint.open_checkpoint(recipe.model))
    chip = targets.chip(recipe.target.chip)
    workers = threads or min(psutil.cpu_count(logical=False) or 1, len(os.sched_getaffinity(0)))
    _check_context(recipe, found)
    cache.guard(recipe.out)
    artifacts: dict[str, Path] = {}
    keys: dict[str, str] = {}
    for stage in plan(recipe):
        def say(text: str, name: str = stage.name) -> None:
            tell(Event(name, "step", text))

        job = Build(recipe, found, chip, workers, say)
        keys[stage.name] = cache.key(stage, job, keys)
        place = recipe.out if stage.name == "bundle" else job.cache / stage.name / keys[stage.name][:20]
        if cache.done(place, keys[stage.name]):
            stamp = json.loads((place / STAMP).read_text(encoding="utf-8"))
            tell(Event(stage.name, "cached", seconds=stamp["seconds"], peak_mib=stamp["peak_rss_mib"],
                       checks=tuple(gates.load(place))))
        else:
            _run(stage, job, artifacts, place, keys[stage.name], tell)
        artifacts[stage.name] = place
    return recipe.out


def _run(stage: Stage, job: Build, artifacts: dict[str, Path], place: Path, key: str,
         tell: Callable[[Event], None]) -> None:
    tell(Event(stage.name, "started"))
    begun = time.perf_counter()
    with cache.whole(place) as out:
        with TreePeak() as peak:
            checks = _checks(stage, job, {name: artifacts[name] for name in stage.needs}, out)
        seconds = time.perf_counter() - begun
        if not all(c.passed for c in checks):
            tell(Event(stage.name, "failed", seconds=seconds, peak_mib=peak.mib, checks=tuple(checks)))
        hint = f"earlier stages are cached; see `gates` and `{stage.name}` in the recipe"
        gates.require(stage.name, checks, hint)
        gates.save(out, checks)
        stamp = {"stage": stage.name, "key": key, "seconds": round(seconds, 2), "peak_rss_mib": peak.mib,
                 "edgeforge": __version__, "tools": cache.versions(stage), "files": cache.sizes(out)}
        (out / STAMP).write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")
    tell(Event(stage.name, "done", seconds=seconds, peak_mib=peak.mib, checks=tuple(checks)))


def _checks(stage: Stage, job: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    try:
        return stage.run(job, sources, out)
    except RunError as error:
        raise EdgeForgeError(f"{stage.name}: {error}", "the runtime could not run this stage's model") from error


def _check_context(recipe: Recipe, found: checkpoint.Checkpoint | onnx_source.OnnxSource) -> None:
    if isinstance(found, onnx_source.OnnxSource):
        return
    limit = found.config.get("max_position_embeddings")
    if isinstance(limit, int) and recipe.target.context > limit:
        raise RecipeError(f"target.context: {recipe.target.context} tokens, and the model was made for {limit}",
                          f"set target.context to {limit} or less")
