"""A build: the stages in order, each found finished or run, measured and kept."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
from edgeforge_runtime.errors import RunError

from edgeforge import __version__, cache, check, gates, interrupt, keys, lock, targets
from edgeforge.build import Build
from edgeforge.errors import EdgeForgeError
from edgeforge.gates import Check
from edgeforge.peak import TreePeak, release
from edgeforge.recipe import Recipe
from edgeforge.source import Source
from edgeforge.stages.plan import Stage, plan
from edgeforge.threads import torch_threads


@dataclass(frozen=True)
class Event:
    """What happened to a stage: it was found, found damaged (text: the file), began, reports a step, is done, or
    fell short of its gate. Before the first stage, "check" may warn.
    """

    stage: str
    kind: Literal["warning", "cached", "damaged", "started", "step", "done", "failed"]
    text: str = ""
    seconds: float = 0.0
    peak_mib: int = 0
    checks: tuple[Check, ...] = ()


def build(recipe: Recipe, tell: Callable[[Event], None], locked: Path | None = None,
          allow_pickle: bool = False) -> Path:
    """Builds the bundle; returns its folder.

    Args:
        locked: a lock file: builds what it says, byte for byte, or says why not.
        allow_pickle: see `open_checkpoint`.

    Raises:
        EdgeForgeError: anything a person can act on; GateError when a stage lost more than allowed.
    """
    check.require_places(recipe)
    found = check.open_model(recipe, allow_pickle)
    check.require(recipe, found, lambda text: tell(Event("check", "warning", text)))
    wanted = lock.load(locked) if locked is not None else None
    job = start(recipe, found, lock.threads(wanted) if wanted else None)
    if wanted is not None:
        lock.require_inputs(wanted, job)
    _Run(job, tell).all()
    if wanted is not None:
        lock.require_files(wanted, recipe.out)
    return recipe.out


def start(recipe: Recipe, found: Source, threads: int | None = None) -> Build:
    """What a build of the recipe on this machine knows; threads: of a locked build."""
    here = min(psutil.cpu_count(logical=False) or 1, len(os.sched_getaffinity(0)))
    return Build(recipe, found, targets.chip(recipe.target.chip), threads or here, _silent)


def places(job: Build) -> Iterator[tuple[Stage, str, Path]]:
    """Every stage in order, its artifact's key, and where the artifact lies once it is finished.

    Raises:
        RecipeError: a file that the recipe names cannot be read.
    """
    known: dict[str, str] = {}
    stages = plan(job.recipe)
    for stage in stages:
        known[stage.name] = key = keys.key(stage, job, known)
        yield stage, key, job.recipe.out if stage is stages[-1] else job.cache / stage.name / key[:20]


def _silent(text: str) -> None:
    pass


class _Run:
    """One pass over the stages."""

    def __init__(self, job: Build, tell: Callable[[Event], None]) -> None:
        self._job, self._listener, self._stages = job, tell, plan(job.recipe)
        self._places: dict[str, Path] = {}
        self._keys: dict[str, str] = {}
        self._sound: set[str] = set()
        """stages whose files were hashed by this process, when it made or read them"""

    def all(self) -> None:
        for stage, key, place in places(self._job):
            self._keys[stage.name], self._places[stage.name] = key, place
            if not self._found(stage):
                self._make(stage)

    def _found(self, stage: Stage) -> bool:
        """Tells of a finished artifact, its figures held against the recipe's gates as they are now. False: there is
        none, or another build is replacing it at this moment.
        """
        place = self._places[stage.name]
        if not cache.done(place, self._keys[stage.name], self._job.locks):
            return False
        try:
            stamp, measured = cache.read_stamp(place), gates.load(place)
        except OSError:
            return False
        checks = tuple(gates.judged(measured, self._job.recipe.limits))
        cached = Event(stage.name, "cached", seconds=stamp["seconds"], peak_mib=stamp["peak_rss_mib"], checks=checks)
        self._require(cached)
        self._tell(cached)
        return True

    def _tell(self, event: Event) -> None:
        """Where a build stops at the latest when it is asked to."""
        interrupt.check()
        self._listener(event)

    def _require(self, found: Event) -> None:
        """Tells of a stage that fell short, and raises GateError."""
        if not all(c.passed for c in found.checks):
            self._tell(dataclasses.replace(found, kind="failed"))
        asked = sorted({c.gate.split()[0] for c in found.checks if c.gate and not c.passed})
        named = ", ".join(f"`gates.{gate}`" for gate in asked)
        stage = next(s for s in self._stages if s.name == found.stage)
        loosen = f"set {named} to what may be lost, and the build goes on from here" if named else ""
        made = f"what it made lies in {self._places[stage.name]}" if stage is not self._stages[-1] else ""
        gates.require(found.stage, found.checks, "; ".join(filter(None, (stage.remedy, loosen, made))))

    def _check(self, stage: Stage) -> None:
        """A source is read only after its hashes were; what is damaged is made again."""
        if stage.name in self._sound:
            return
        if cache.damage(self._places[stage.name]) is None:
            self._sound.add(stage.name)
        else:
            self._make(stage)

    def _made(self, stage: Stage) -> bool:
        """Did another build make it meanwhile, or mend it? Asked under the lock: only its holder replaces it."""
        place = self._places[stage.name]
        if not cache.done(place, self._keys[stage.name], self._job.locks):
            return False
        if (name := cache.damage(place)) is not None:
            self._tell(Event(stage.name, "damaged", str(place / name)))
        return name is None and self._found(stage)

    def _make(self, stage: Stage) -> None:
        for need in (s for s in self._stages if s.name in stage.needs):
            self._check(need)

        def say(text: str) -> None:
            self._tell(Event(stage.name, "step", text))

        place = self._places[stage.name]
        with cache.one_at_a_time(place, self._job.locks, lambda: say("waiting for another build")):
            if not self._made(stage):
                self._tell(Event(stage.name, "started"))
                self._fill(stage, dataclasses.replace(self._job, say=say, key=self._keys[stage.name]), place)
        self._sound.add(stage.name)

    def _fill(self, stage: Stage, job: Build, place: Path) -> None:
        begun = time.perf_counter()
        with cache.whole(place) as out:
            release()  # or a compiler would have to live beside what the stages before it once needed
            with TreePeak() as peak:
                measured = _checks(stage, job, {name: self._places[name] for name in stage.needs}, out)
            interrupt.check()  # or what a finalizer swallowed is known only when the stage is kept
            checks = tuple(gates.judged(measured, job.recipe.limits))
            seconds = time.perf_counter() - begun
            done = Event(stage.name, "done", seconds=seconds, peak_mib=peak.mib, checks=checks)
            if stage is self._stages[-1]:  # a bundle is whole or is not there
                self._require(done)
            gates.save(out, checks)
            cache.stamp(out, {"stage": stage.name, "key": self._keys[stage.name], "seconds": round(seconds, 2),
                              "peak_rss_mib": peak.mib, "edgeforge": __version__,
                              "tools": keys.versions(stage, job.chip.backend)})
            if stage is self._stages[-1]:
                cache.guard(place)  # again: what a user put there while the build ran is no less theirs
        self._require(done)  # kept all the same: what it lost can be looked at, or allowed
        self._tell(done)


def _checks(stage: Stage, job: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    computing = torch_threads(job.threads) if "torch" in stage.tools else contextlib.nullcontext()
    try:
        with computing:
            return stage.run(job, sources, out)
    except RunError as error:
        raise EdgeForgeError(f"{stage.name}: {error}", "the runtime could not run this stage's model") from error
