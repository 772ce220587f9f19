"""AIMET's recipe on the whole model, emulated, against our qualities: perplexity and KL on text, paired intervals."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from edgeforge_runtime.manifest import Manifest
from edgeforge_runtime.session import Session

from edgeforge import artifact, checkpoint
from edgeforge.calibrate import whole
from edgeforge.evaluation import bootstrap, logits, texts
from edgeforge.graph import store
from edgeforge.metrics import Totals, figures
from edgeforge.quantize import sequential, weight_grids
from edgeforge.quantize.quality import PRESETS
from edgeforge.quantize.walk import Sample
from edgeforge.quantize.weights.grid import Grid
from peer import meter, recipe
from peer.prepare import Prepared

TOKENS, WINDOWS = 512, 8
FIGURES = ("kl", "ppl_ratio", "flips")
Search = Callable[[ir.Model, Sequence[Sample], Mapping[str, Grid], Callable[[str], None]], object]


@dataclass(frozen=True)
class Text:
    """Windows of a kind of text, and where the float model's logits of each lie."""

    name: str
    windows: tuple[np.ndarray, ...]
    references: tuple[Path, ...]


def _ours(quality: str) -> Search:
    def search(model: ir.Model, samples: Sequence[Sample], grids: Mapping[str, Grid], say: Callable[[str], None]
               ) -> object:
        return sequential.quantize(model, samples, grids, PRESETS[quality], say)
    return search


SEARCHES: dict[str, tuple[str, Search]] = {
    "AIMET, our graph": ("balanced", recipe.quantize), "AIMET's recipe": ("bare", recipe.quantize),
    "balanced": ("balanced", _ours("balanced")), "best": ("best", _ours("best"))}
"""the variant of graph and text (prepare.VARIANTS), and what puts every weight on its grid"""


def evaluation_text(ready: Prepared, novel: Path | None, scratch: Path) -> list[Text]:
    """Text of calibration's kinds that calibration did not take, and a novel; with the float model's logits."""
    job = ready.transform.build
    tokenizer = checkpoint.load_tokenizer(job.checkpoint)
    length = min(TOKENS, job.context)
    rows = texts.rows(tokenizer, length, WINDOWS, None, [novel] if novel else [], ready.transform.calibration,
                      gates=())
    held = itertools.zip_longest(*(row.windows for row in rows if row.held))
    mixed = tuple(w for group in held for w in group if w is not None)[:WINDOWS]
    model = checkpoint.load_model(job.checkpoint)
    found = []
    for name, windows in [("in domain", mixed), *((row.name, row.windows) for row in rows if row.held is None)]:
        places = tuple(scratch / f"{len(found)}_{i}.npy" for i in range(len(windows)))
        for place, made in zip(places, logits.hf_logits(model, list(windows)), strict=True):
            np.save(place, made)
        found.append(Text(name, windows, places))
    return found


def quantized(ready: Prepared, block: int | None, search: Search, out: Path, say: Callable[[str], None]
              ) -> dict[str, float]:
    """Writes the float model that a search leaves, as an artifact that can be run; returns what it took."""
    source = ready.transform.folder
    model = store.load(source)
    samples = [whole.feeds(ready.decoder, ids, ready.tables) for ids in ready.windows]
    options = ready.transform.build.recipe.quantize.model_copy(update={"block": block})
    with meter.measured() as spent:
        search(model, samples, weight_grids.choose(model.graph, options, decoder=True), say)
    out.mkdir()
    artifact.carry(source, out)
    Manifest.load(source).save(out)
    store.save(model, out)
    return spent


def measure(folder: Path, text: Text, threads: int) -> Totals:
    """[windows, 10]: see metrics.Totals."""
    with Session.open(folder, threads=threads) as session:
        return np.stack([logits.meter(logits.session_logits(session, ids), np.load(place), ids).totals
                         for ids, place in zip(text.windows, text.references, strict=True)])


def run(ready: Mapping[str, Prepared], block: int | None, read: Sequence[Text], threads: int, scratch: Path,
        say: Callable[[str], None]) -> Iterator[str]:
    """The table's lines: every search on every text, and each against the one before it. ready: by variant."""
    torch.set_num_threads(threads)
    found: dict[str, list[Totals]] = {}
    yield f"{'':18}{'CPU s':>7}{'text':>14}" + "".join(f"{figure + ' [95 %]':>28}" for figure in FIGURES)
    for name, (variant, search) in SEARCHES.items():
        say(name)
        folder = scratch / "variant"
        spent = quantized(ready[variant], block, search, folder, say)
        found[name] = [measure(folder, text, threads) for text in read]
        shutil.rmtree(folder)
        for text, totals in zip(read, found[name], strict=True):
            cells = "".join(f"{_shown(_estimate(totals, figure)):>28}" for figure in FIGURES)
            yield f"{name:18}{spent['cpu']:7.0f}{text.name:>14}" + cells
    for index, text in enumerate(read):
        perplexity = _estimate(next(iter(found.values()))[index], "ppl_reference").value
        yield f"{text.name}: {len(text.windows)} windows, the float model's perplexity is {perplexity:.3f}"
    for (worse, a), (better, b) in itertools.pairwise(found.items()):
        for index, text in enumerate(read):
            for figure in FIGURES:
                gap = bootstrap.compare(b[index], a[index], figure)
                sure = "excludes zero" if gap.excludes_zero else "holds zero"
                yield f"{better} less {worse}, {text.name}, {figure}: {_shown(gap)} {sure}"


def _estimate(totals: Totals, figure: str) -> bootstrap.Estimate:
    return bootstrap.estimate(totals, lambda drawn: figures(drawn)[figure])


def _shown(of: bootstrap.Estimate) -> str:
    return f"{of.value:.4f} [{of.low:.4f}, {of.high:.4f}]"
