"""The stages in order: run, measured, cached by content, resumed.

An artifact lives in <cache>/<stage>/<key>/, where the key hashes everything it depends on: the artifacts it
was made from, the recipe's part that the stage reads, the stage's own code and the tools' versions. It gets
its place by one rename, after its gate has passed; a failed or killed stage leaves nothing.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import edgeforge_runtime
import psutil
from edgeforge_runtime.errors import RunError

from edgeforge import __version__, checkpoint, gates, targets
from edgeforge.build import STAMP, Build
from edgeforge.errors import EdgeForgeError, RecipeError
from edgeforge.gates import Check
from edgeforge.peak import TreePeak
from edgeforge.recipe import Recipe

_PACKAGE, _RUNTIME = Path(__file__).parent, Path(edgeforge_runtime.__file__).parent
_MARK = ".edgeforge-"
"""in the name of a folder that is being made, before the maker's process id; nobody else's folder has it"""
_CORE = ("artifact.py", "evaluate.py", "metrics.py", "targets.py", "checkpoint.py", "build.py", "encodings.py")
_TORCH, _ONNX, _ORT = ("torch", "transformers"), ("onnx", "onnx-ir", "onnxsim"), ("onnxruntime", "numpy")


@dataclass(frozen=True)
class Stage:
    """One step. needs: stages whose artifacts it reads. keys: the recipe's part that it reads.
    rooms: source files and folders under edgeforge/ whose change reruns it. tools: distributions, likewise.
    """

    name: str
    needs: tuple[str, ...]
    keys: Callable[[Recipe], Any]
    rooms: tuple[str, ...]
    tools: tuple[str, ...]

    def run(self, build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
        """Calls edgeforge.stages.<name>.run; its imports are paid for only now."""
        module = importlib.import_module(f"edgeforge.stages.{self.name}")
        checks: list[Check] = module.run(build, sources, out)
        return checks


STAGES = (
    Stage("adapt", (), lambda r: [r.target.context, r.target.prefill, r.gates.windows, r.gates.adapt_db],
          ("adapt", "calibrate/text.py", "graph/store.py", "stages/adapt.py"), (*_TORCH, *_ONNX, *_ORT, "onnxscript")),
    Stage("optimize", ("adapt",), lambda r: [r.gates.optimize_db],
          ("graph", "stages/adapt.py", "stages/optimize.py"), (*_ONNX, *_ORT)),
    Stage("transform", ("adapt", "optimize"),
          lambda r: [r.calibrate, r.quantize.transforms, r.quantize.embedding, r.gates.optimize_db],
          ("quantize", "calibrate", "graph", "stages/adapt.py", "stages/reading.py", "stages/transform.py"),
          (*_ONNX, *_ORT)),
    Stage("calibrate", ("transform",), lambda r: [r.calibrate, r.quantize.rounding],
          ("quantize", "calibrate", "graph", "stages/reading.py", "stages/calibrate.py"), (*_ONNX, *_ORT)),
    Stage("quantize", ("adapt", "transform", "calibrate"), lambda r: [r.quantize, r.gates],
          ("quantize", "calibrate", "graph", "stages/calibrate.py", "stages/quantize.py"), (*_ONNX, *_ORT)),
    Stage("export", ("adapt", "transform", "quantize"), lambda r: [],
          ("export", "stages/export.py"), (*_ONNX, *_ORT)),
    Stage("split", ("transform", "quantize", "export"), lambda r: [r.split, r.gates.sha_db, r.gates.split_db],
          ("graph", "quantize", "export", "stages/split.py"), (*_ONNX, *_ORT)),
    Stage("compile", ("split",), lambda r: [r.target, r.compile, r.gates],
          ("backends", "export/record.py", "stages/compile.py"), (*_ORT, "onnxruntime-qnn")),
    Stage("bundle", ("adapt", "optimize", "transform", "calibrate", "quantize", "export", "split", "compile"),
          lambda r: [r.target],
          ("backends", "report", "stages/bundle.py"), (*_ORT, "onnxruntime-qnn")),
)


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
    found = checkpoint.open_checkpoint(recipe.model)
    chip = targets.chip(recipe.target.chip)
    workers = threads or min(psutil.cpu_count(logical=False) or 1, len(os.sched_getaffinity(0)))
    _check_context(recipe, found)
    _guard(recipe.out)
    artifacts: dict[str, Path] = {}
    keys: dict[str, str] = {}
    for stage in STAGES:
        def say(text: str, name: str = stage.name) -> None:
            tell(Event(name, "step", text))

        job = Build(recipe, found, chip, workers, say)
        keys[stage.name] = _key(stage, job, keys)
        place = recipe.out if stage.name == "bundle" else job.cache / stage.name / keys[stage.name][:20]
        if _done(place, keys[stage.name]):
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
    with _whole(place) as out:
        with TreePeak() as peak:
            checks = _checks(stage, job, {name: artifacts[name] for name in stage.needs}, out)
        seconds = time.perf_counter() - begun
        if not all(c.passed for c in checks):
            tell(Event(stage.name, "failed", seconds=seconds, peak_mib=peak.mib, checks=tuple(checks)))
        hint = f"earlier stages are cached; see `gates` and `{stage.name}` in the recipe"
        gates.require(stage.name, checks, hint)
        gates.save(out, checks)
        stamp = {"stage": stage.name, "key": key, "seconds": round(seconds, 2), "peak_rss_mib": peak.mib,
                 "edgeforge": __version__, "tools": _versions(stage), "files": _sizes(out)}
        (out / STAMP).write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")
    tell(Event(stage.name, "done", seconds=seconds, peak_mib=peak.mib, checks=tuple(checks)))


def _checks(stage: Stage, job: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    try:
        return stage.run(job, sources, out)
    except RunError as error:
        raise EdgeForgeError(f"{stage.name}: {error}", "the runtime could not run this stage's model") from error


def _sizes(folder: Path) -> dict[str, int]:
    """Every file's size: what the no-op path checks by stat."""
    return {str(p.relative_to(folder)): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}


def _done(place: Path, key: str) -> bool:
    """Is the artifact of this key there, with every file as long as it was?"""
    try:
        stamp = json.loads((place / STAMP).read_text(encoding="utf-8"))
        return stamp["key"] == key and all((place / n).stat().st_size == s for n, s in stamp["files"].items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _key(stage: Stage, job: Build, keys: dict[str, str]) -> str:
    parts = stage.keys(job.recipe)
    facts = {
        "stage": stage.name, "needs": {name: keys[name] for name in stage.needs},
        "recipe": [p.model_dump(mode="json") if hasattr(p, "model_dump") else p for p in parts],
        "code": _code(stage), "tools": _versions(stage), "threads": job.threads,
        "profile": repr(job.profile), "python": platform.python_version(),
        "checkpoint": job.checkpoint.fingerprint() if not stage.needs else None,
        "text": _text(job.recipe) if job.recipe.calibrate in parts else None,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _text(recipe: Recipe) -> str | None:
    path = recipe.calibrate.text
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path is not None else None
    except OSError as error:
        raise RecipeError(f"calibrate.text: {path}: {error.strerror}", "give the path of a UTF-8 text file") from error


def _code(stage: Stage) -> str:
    digest = hashlib.sha256()
    for path in (_RUNTIME, *(_PACKAGE / room for room in (*_CORE, *stage.rooms))):
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _versions(stage: Stage) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in ("edgeforge-runtime", *stage.tools):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def _check_context(recipe: Recipe, found: checkpoint.Checkpoint) -> None:
    limit = found.config.get("max_position_embeddings")
    if isinstance(limit, int) and recipe.target.context > limit:
        raise RecipeError(f"target.context: {recipe.target.context} tokens, and the model was made for {limit}",
                          f"set target.context to {limit} or less")


def _guard(out: Path) -> None:
    """Refuses to replace a folder that no build made."""
    if out.exists() and not (out / STAMP).is_file() and any(out.iterdir() if out.is_dir() else [out]):
        raise EdgeForgeError(f"{out} exists and is not an EdgeForge bundle", "choose another `out`, or move it away")


@contextlib.contextmanager
def _whole(place: Path) -> Iterator[Path]:
    """A folder that becomes `place` by one rename when the block ends well, and vanishes when it does not."""
    work = place.parent / f".{place.name}{_MARK}{os.getpid()}"
    old = work.with_name(work.name + "-old")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _sweep(place.parent)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        yield work
        if place.exists():
            place.replace(old)
        work.replace(place)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "free disk space, or choose another `out`" if full else "can `out` be written there?"
        raise EdgeForgeError(f"{error.filename or place}: {error.strerror or error}",
                             f"{hint} Finished stages stay cached, nothing half-made is left") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Removes what builds that were killed left half-made."""
    for path in folder.glob(f".*{_MARK}*"):
        owner = path.name.removesuffix("-old").rpartition(_MARK)[2]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(path, ignore_errors=True)
