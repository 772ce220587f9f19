"""A finished stage against the HuggingFace float model: text of several domains, and a labelled task."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from edgeforge_runtime.errors import RunError
from edgeforge_runtime.manifest import LOGITS, Manifest, Target
from edgeforge_runtime.session import Session

from edgeforge import backends, checkpoint
from edgeforge.calibrate.windows import gate_windows
from edgeforge.errors import EdgeForgeError, RecipeError
from edgeforge.evaluation import artifacts, bootstrap, logits, tasks, texts
from edgeforge.evaluation.artifacts import Finished
from edgeforge.evaluation.bootstrap import Estimate
from edgeforge.metrics import Totals, figures
from edgeforge.recipe import Recipe
from edgeforge.threads import torch_threads

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FIGURES = ("ppl_reference", "ppl", "ppl_ratio", "kl", "flips", "sqnr", "centred_sqnr")
_TOKENS = 512
"""of a window, where the context is as long"""


@dataclass(frozen=True)
class Request:
    """What to evaluate: one target of a stage's artifact, on the built-in domains and files, windows of each; and on a
    task."""

    stage: str = "bundle"
    on: str = "cpu"
    files: tuple[Path, ...] = ()
    windows: int = 8
    task: str | None = None


@dataclass(frozen=True)
class Row:
    """One domain. held: see texts.Row. figures: see metrics.figures. worst_token: dB, at (window, token), from 0."""

    name: str
    held: bool | None
    windows: int
    tokens: int
    figures: dict[str, Estimate]
    worst_token: float
    worst_at: tuple[int, int]


@dataclass(frozen=True)
class Task:
    """Shares of items that float model and artifact get right, and by how much more the artifact does."""

    name: str
    items: int
    reference: Estimate
    actual: Estimate
    difference: Estimate


@dataclass(frozen=True)
class Evaluation:
    """The artifact, and what was measured on it. empty: domains without a window that the build has not seen. caution:
    what to know of a target that is no CPU."""

    stage: str
    on: str
    folder: Path
    rows: tuple[Row, ...]
    empty: tuple[str, ...]
    task: Task | None
    caution: str


def evaluate(recipe: Recipe, request: Request, say: Callable[[str], None], allow_pickle: bool = False) -> Evaluation:
    """Measures a finished stage of the recipe.

    Raises:
        RecipeError: no such stage, target or task; text that cannot be read, is too short or repeats calibration text.
        EdgeForgeError: the stage is not finished or cannot be run; a task's package is not installed.
    """
    items = tasks.load(request.task) if request.task is not None else []
    found = artifacts.find(recipe, request.stage, allow_pickle)
    target = _target(found, request.on)
    job = found.build
    tokenizer = checkpoint.load_tokenizer(job.checkpoint)
    questions = [tasks.question(item, tokenizer, job.context) for item in items]
    say("choosing text")
    rows = _text(recipe, request, found, tokenizer)
    say("loading the HuggingFace model")
    model = checkpoint.load_model(job.checkpoint)
    with _opened(found, request.on, target) as session, torch_threads(job.threads):
        measured = tuple(_row(session, model, row, say) for row in rows if row.windows)
        task = _task(session, model, request.task, questions, say) if request.task is not None else None
    empty = tuple(row.name for row in rows if not row.windows)
    return Evaluation(request.stage, request.on, found.folder, measured, empty, task, backends.caution(target))


def _target(found: Finished, on: str) -> Target:
    known = Manifest.load(found.folder).targets
    if on not in known:
        raise RecipeError(f"--on {on}: what {found.stage} leaves has no such target",
                          f"it has {', '.join(sorted(known))}")
    backends.require_runnable(on, known[on])
    return known[on]


def _text(recipe: Recipe, request: Request, found: Finished, tokenizer: PreTrainedTokenizerBase) -> list[texts.Row]:
    length = min(found.build.context, _TOKENS)
    rows = texts.rows(tokenizer, length, request.windows, recipe.calibrate.text, request.files, found.calibration,
                      gate_windows(tokenizer, recipe))
    if not any(row.windows for row in rows):
        raise EdgeForgeError(
            f"nothing is left to evaluate on: {', '.join(row.name for row in rows)} hold no window of {length} tokens "
            "that neither calibration nor the gates have read", "name a text that they have not (--text)")
    return rows


@contextlib.contextmanager
def _opened(found: Finished, on: str, target: Target) -> Iterator[Session]:
    """A session; a quantized model is run as it is written, without the runtime's own rewrites."""
    try:
        exact = target.graphs[0].boundary()[1][LOGITS].scale is not None
        with Session.open(found.folder, on, threads=found.build.threads, exact=exact) as session:
            yield session
    except RunError as error:
        raise EdgeForgeError(f"{found.stage}: {error}", "the runtime could not run this stage's model") from error


def _row(session: Session, model: Any, row: texts.Row, say: Callable[[str], None]) -> Row:
    meters = []
    for number, ids in enumerate(row.windows):
        say(f"{row.name}: window {number + 1} of {len(row.windows)}")
        reference = next(logits.hf_logits(model, [ids]))
        meters.append(logits.meter(logits.session_logits(session, ids), reference, ids))
    totals = np.stack([meter.totals for meter in meters])
    worst = [meter.result() for meter in meters]
    window = min(range(len(worst)), key=lambda i: worst[i].worst_token_sqnr)
    return Row(row.name, row.held, len(totals), sum(map(len, row.windows)), estimates(totals),
               worst[window].worst_token_sqnr, (window, worst[window].worst_token))


def estimates(totals: Totals) -> dict[str, Estimate]:
    """Every figure of totals [windows, 10] with its interval."""
    def of(name: str) -> Estimate:
        return bootstrap.estimate(totals, lambda drawn: figures(drawn)[name])

    return {name: of(name) for name in FIGURES}


def _task(session: Session, model: Any, name: str, questions: Sequence[tasks.Question],
          say: Callable[[str], None]) -> Task:
    def of_float(ids: Sequence[int]) -> Iterator[tasks.Floats]:
        return logits.hf_logits(model, [np.asarray(ids, np.int64)])

    reference, actual = (
        tasks.answers(read, questions, lambda text, who=who: say(f"{name}, {who}: {text}"))  # type: ignore[misc]
        for read, who in ((of_float, "float model"), (session.score, "artifact")))
    both = np.stack([reference, actual, np.ones(len(questions))], axis=1).astype(np.float64)

    def share(column: int) -> Estimate:
        return bootstrap.estimate(both, lambda drawn: drawn[:, column] / drawn[:, 2])

    difference = bootstrap.estimate(both, lambda drawn: (drawn[:, 1] - drawn[:, 0]) / drawn[:, 2])
    return Task(name, len(questions), share(0), share(1), difference)


def plain(found: Evaluation) -> dict[str, Any]:
    """For JSON, which has no infinities and no NaN: those become text, and an interval that is not there null."""
    def number(value: float) -> float | str:
        return value if math.isfinite(value) else str(value)

    def figure(of: Estimate) -> dict[str, Any]:
        low, high = (None if math.isnan(end) else number(end) for end in (of.low, of.high))
        return {"value": number(of.value), "low": low, "high": high}

    rows = [{"domain": row.name, "held_by_calibration": row.held, "windows": row.windows, "tokens": row.tokens,
             **{name: figure(of) for name, of in row.figures.items()}, "worst_token_sqnr": number(row.worst_token),
             "worst_token": {"window": row.worst_at[0], "token": row.worst_at[1]}} for row in found.rows]
    task = found.task and {
        "name": found.task.name, "items": found.task.items, "reference": figure(found.task.reference),
        "actual": figure(found.task.actual), "difference": figure(found.task.difference)}
    return {"stage": found.stage, "on": found.on, "caution": found.caution, "artifact": str(found.folder),
            "level": bootstrap.LEVEL, "domains": rows, "empty": list(found.empty), "task": task}
