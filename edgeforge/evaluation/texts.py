"""Text to evaluate on, a row a domain, with nothing in it that the model was calibrated on.

Of the built-in text and the recipe's own, what the build's gates measured on is left out as well: a budget's bits are
chosen by it (stages/mixed.py), and a build that failed there was changed until it passed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgeforge.calibrate import overlap, sources
from edgeforge.calibrate.overlap import Known
from edgeforge.calibrate.sections import Domain, text_hash, word_runs
from edgeforge.calibrate.template import Frame, Window
from edgeforge.calibrate.windows import Pools, pools, require_template_for, stream
from edgeforge.errors import RecipeError
from edgeforge.evaluation.artifacts import Calibration

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Row:
    """The windows of one domain, each int64 [tokens]; none where all that it has is left out, or there is too little.
    held: calibration holds text of the same kind; None of a model that was not calibrated, and of a user's file, whose
    kind nobody knows."""

    name: str
    held: bool | None
    windows: tuple[Window, ...]


def rows(tokenizer: PreTrainedTokenizerBase, length: int, count: int, own: Path | None, files: Sequence[Path],
         calibration: Calibration, gates: Sequence[Window]) -> list[Row]:
    """At most count windows of each domain: the built-in ones, what calibration left of the recipe's own text, and
    each of files.

    Args:
        gates: what the build measured itself on.

    Raises:
        RecipeError: a file cannot be read, holds less than a window, or repeats calibration text.
    """
    known = Known(tokenizer, gates, calibration.hashes)
    check = _Check(tokenizer, calibration)

    def held(domain: Domain, source: bool) -> bool | None:
        return source and domain in calibration.domains if calibration.domains else None

    def left(source: Path | None) -> Iterator[tuple[Domain, tuple[Window, ...]]]:
        for domain, found in _left(tokenizer, length, source):
            yield domain, tuple(itertools.islice(known.without(found), count))

    made = [Row(domain, held(domain, own is None), found) for domain, found in left(None)]
    if own is not None:
        made += [Row(f"{own.name} ({domain} left)", held(domain, True), found) for domain, found in left(own)]
    return made + [Row(file.name, None, check.refuse(file, _whole(tokenizer, length, count, file))) for file in files]


def _left(
    tokenizer: PreTrainedTokenizerBase, length: int, own: Path | None
) -> Iterator[tuple[Domain, Iterator[Window]]]:
    """The domains of a text, each with what calibration did not take."""
    found: Pools = pools(tokenizer, own)
    for domain in dict.fromkeys(domain for _, domain in found):
        yield domain, stream(tokenizer, length, domain, found.get(("evaluation", domain), []), own)


def _whole(tokenizer: PreTrainedTokenizerBase, length: int, count: int, file: Path) -> list[Window]:
    every = sorted(sources.read(file), key=lambda section: text_hash(section.text))
    require_template_for(tokenizer, every, file)
    streams = [stream(tokenizer, length, kind, [s for s in every if s.kind == kind], file)
               for kind in sorted({s.kind for s in every})]
    mixed = (w for group in itertools.zip_longest(*streams) for w in group if w is not None)
    found = list(itertools.islice(mixed, count))
    if not found:
        raise RecipeError(f"{file} holds less than one window of {length} tokens", "give a longer text")
    return found


class _Check:
    """Finds what was calibrated on in a user's file."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, calibration: Calibration) -> None:
        self._tokenizer, self._frame = tokenizer, Frame.of(tokenizer)
        self._calibration = calibration
        self._known = Known(tokenizer, (), calibration.hashes)

    def refuse(self, file: Path, windows: Sequence[Window]) -> tuple[Window, ...]:
        """The windows, or RecipeError naming the first that holds something of it."""
        for number, window in enumerate(windows):
            if len(shared := self._known.shared(window)):
                where = next(i for i, h in enumerate(self._calibration.hashes) if shared[0] in h)
                raise RecipeError(
                    f"{file}: window {number + 1} repeats calibration text: {self._words(window, int(shared[0]))!r} "
                    f"also stands in calibration window {where + 1} ({self._calibration.domains[where]})",
                    "evaluate on text that calibration has not seen, or calibrate on other text (calibrate.text)")
        return tuple(windows)

    def _words(self, window: Window, wanted: int) -> str:
        texts = (str(self._tokenizer.decode(piece.tolist())) for _, piece in self._frame.pieces(window))
        runs = (" ".join(run) for text in texts for run in word_runs(text, overlap.RUN_WORDS))
        return next(run for run in runs if wanted in overlap.text_hashes(run))
