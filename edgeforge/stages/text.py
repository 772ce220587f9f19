"""text: the calibration windows, written once for all stages that look at the model run."""

from __future__ import annotations

import gc
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgeforge import checkpoint
from edgeforge.build import DATA, HASHES, Build
from edgeforge.calibrate import own
from edgeforge.calibrate.overlap import Known, hashes
from edgeforge.calibrate.sections import Domain
from edgeforge.calibrate.template import Frame, Window
from edgeforge.calibrate.windows import calibration_windows, gate_windows
from edgeforge.errors import RecipeError
from edgeforge.gates import Check
from edgeforge.recipe import Recipe
from edgeforge.stages.reading import WINDOWS


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes windows.npz {ids: int64 [windows, tokens]} and data.json, which says what they are.

    The text's own windows and what the model writes are spread evenly among each other. None of them repeats what the
    gates measure on.
    """
    options = build.recipe.calibrate
    tokenizer = checkpoint.load_tokenizer(build.checkpoint)
    length = min(options.tokens, build.context)
    gated = Known(tokenizer, gate_windows(tokenizer, build.recipe))
    made = _read(build.recipe, tokenizer, length, gated)
    if options.samples:
        written = _own(build, tokenizer, length)
        made = list(_spread(made, [(domain, w) for domain, window in written for w in gated.without([window])]))
    windows = [window for _, window in made]
    np.savez(out / WINDOWS, ids=np.stack(windows))
    frame = Frame.of(tokenizer)
    counts = Counter(domain for domain, _ in made)
    facts = describe(windows) | {
        "counts": dict(sorted(counts.items())), "domains": [domain for domain, _ in made],
        HASHES: [hashes(tokenizer, window, frame).astype(">u8").tobytes().hex() for window in windows]}
    (out / DATA).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    note = ", ".join(f"{count} {domain}" for domain, count in sorted(counts.items()))
    if gated.repeats:
        note += f"; left out {gated.repeats} that repeat what the gates measure on"
    return [Check("text: windows", len(windows), f"of {length} tokens", note=note)]


def describe(windows: Sequence[Window]) -> dict[str, Any]:
    """How much text, and the sha256 of its token ids (int64, little-endian, each window behind its length)."""
    digest = hashlib.sha256()
    for window in windows:
        digest.update(np.array([len(window), *window], "<i8").tobytes())
    return {"windows": len(windows), "tokens": sum(map(len, windows)), "sha256": digest.hexdigest()}


def _read(recipe: Recipe, tokenizer: Any, length: int, gated: Known) -> list[tuple[Domain, Window]]:
    """`calibration_windows` of what the recipe names; a RecipeError comes with the recipe's line."""
    options = recipe.calibrate
    try:
        return calibration_windows(tokenizer, length, options.windows, options.text, gated)
    except RecipeError as error:
        where = recipe.where("calibrate.text" if options.text is not None else "calibrate.windows")
        raise RecipeError(f"{where}: {error.message}", error.hint) from error


def _own(build: Build, tokenizer: Any, length: int) -> list[tuple[Domain, Window]]:
    build.say("the model writes text")
    model = checkpoint.load_model(build.checkpoint)
    try:
        return own.windows(tokenizer, own.sampler(model, tokenizer), length, build.recipe.calibrate.samples)
    finally:
        del model
        gc.collect()


def _spread(a: list[tuple[Domain, Window]], b: list[tuple[Domain, Window]]) -> Iterator[tuple[Domain, Window]]:
    """Both in their order, so that any first k hold as even a share of each as can be."""
    ranked = [((i + 0.5) / len(part), which, item) for which, part in enumerate((a, b)) for i, item in enumerate(part)]
    return (item for *_, item in sorted(ranked, key=lambda entry: entry[:2]))
