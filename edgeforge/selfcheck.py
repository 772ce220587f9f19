"""A bundle on the machine that it was built for: are the numbers right, and how fast is it?

For who has the GPU, or whatever the target runs on: the tokens of the bundle's own test vectors are read on that
target and on the CPU, and the logits compared; then the first token and the following ones are timed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from edgeforge_runtime.contract import logit_rows
from edgeforge_runtime.errors import RunError
from edgeforge_runtime.manifest import IDS, Manifest
from edgeforge_runtime.session import Session

from edgeforge import backends
from edgeforge.errors import EdgeForgeError, RecipeError
from edgeforge.export import record
from edgeforge.gates import Check
from edgeforge.metrics import sqnr_db
from edgeforge.sections import Gates

_VECTORS = Path("vectors") / "whole"
LEAST_DB = Gates().wide_db
"""where the target does not say more: codes that flip between two arithmetics grow through the layers"""
_STEPS = 64
_REFERENCE = "cpu"


@dataclass(frozen=True)
class Timing:
    """One run over a prompt and the steps behind it."""

    prompt: int
    first_s: float
    steps: int
    steps_s: float


def run(bundle: Path, on: str | None = None) -> list[Check]:
    """Compares and times; the checks say what was found. on: a target; the one beside the CPU's when there is just one.

    Raises:
        RecipeError: the bundle has no such target. EdgeForgeError: it cannot be opened here, or has no test vectors.
    """
    try:
        on = target(bundle, on)
        chosen = _manifest(bundle).targets[on]
        prompt, steps = _tokens(bundle)
        every_row = all(logit_rows(graph) == graph.ar for graph in chosen.graphs)
        with Session.open(bundle, on) as session:
            made = _logits(session, prompt, steps, every_row)
            timing = _timed(session, prompt, steps)
        with Session.open(bundle, _REFERENCE) as session:
            expected = _logits(session, prompt, steps, every_row)
    except RunError as error:
        raise EdgeForgeError(str(error), "run this on the machine that the bundle was built for, with its whole folder"
                             ) from error
    return _checks(on, expected, made, timing, chosen.least_db or LEAST_DB)


def target(bundle: Path, on: str | None) -> str:
    """The target to check; raises like run."""
    manifest = _manifest(bundle)
    names = sorted(manifest.targets)
    others = [name for name in names if name != _REFERENCE]
    here = [name for name in others if backends.runnable(manifest.targets[name])]
    runs = f"of its targets this machine runs {', '.join(here) or 'none but ' + _REFERENCE}"
    on = others[0] if on is None and len(others) == 1 else on
    if on is None:
        raise RecipeError(f"{bundle} has the targets {', '.join(names)}", f"say which with --on; {runs}")
    if on not in names:
        raise RecipeError(f"--on {on}: {bundle} has no such target", f"it has {', '.join(names)}")
    if on not in (*here, _REFERENCE):
        raise RecipeError(f"--on {on}: it {backends.caution(manifest.targets[on]) or 'has no executor here'}", runs)
    return on


def _manifest(bundle: Path) -> Manifest:
    try:
        return Manifest.load(bundle)
    except RunError as error:
        raise EdgeForgeError(str(error), "give a bundle's whole folder") from error


def _tokens(bundle: Path) -> tuple[list[int], list[int]]:
    """The prompt of the bundle's vectors, read twice but for its last third (so that the wide graph reads over a past,
    and rows that hold no token), and the tokens behind it."""
    try:
        labels = sorted(p.name for p in (bundle / _VECTORS).iterdir())
        found = {n: record.load_arrays(bundle / _VECTORS / n / record.INPUTS)[IDS].reshape(-1).tolist() for n in labels}
    except (OSError, KeyError, ValueError) as error:
        raise EdgeForgeError(f"{bundle / _VECTORS} holds no test vectors: {error}", "copy the bundle again") from error
    wide = [n for n in labels if not n.startswith("ar1_")]
    if not wide:
        raise EdgeForgeError(f"{bundle / _VECTORS} holds no prompt", "copy the bundle again")
    prompt = found[wide[0]]
    steps = [token for n in labels if n.startswith("ar1_") for token in found[n]]
    return (2 * prompt)[:2 * len(prompt) - len(prompt) // 3], steps


def _logits(session: Session, prompt: list[int], steps: list[int], every_row: bool) -> np.ndarray:
    """Of the prompt's tokens, or of its last one where the wide graph makes no others, and of the steps behind it."""
    session.forget()
    first = np.concatenate(list(session.score(prompt))) if every_row else session.prompt(prompt)[None]
    return np.concatenate([first, *(session.step(token)[None] for token in steps)])


def _timed(session: Session, prompt: list[int], steps: list[int]) -> Timing:
    """Warm: everything has run before. The steps repeat the prompt's tokens, as far as the context goes."""
    session.forget()
    begun = time.perf_counter()
    session.prompt(prompt)
    first = time.perf_counter() - begun
    count = min(_STEPS, session.context - len(prompt))
    begun = time.perf_counter()
    for index in range(count):
        session.step((steps or prompt)[index % len(steps or prompt)])
    return Timing(len(prompt), first, count, time.perf_counter() - begun)


def _checks(on: str, expected: np.ndarray, made: np.ndarray, timing: Timing, least: float) -> list[Check]:
    flips = float((expected.argmax(-1) != made.argmax(-1)).mean())
    found = [Check(f"{on} against {_REFERENCE}, logits", sqnr_db(expected, made), "dB", least),
             Check(f"{on} against {_REFERENCE}, top-1 flips", flips, "of tokens"),
             Check(f"{on}: first token", timing.first_s, "s", note=f"a prompt of {timing.prompt} tokens")]
    if timing.steps:
        found.append(Check(f"{on}: decode", timing.steps / timing.steps_s, "tokens/s", note=f"{timing.steps} steps"))
    return found
