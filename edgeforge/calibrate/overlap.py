"""Text that stands in two places: found by hashes of runs of words."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edgeforge.calibrate.sections import word_runs
from edgeforge.calibrate.template import Frame, Window

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

RUN_WORDS = 13
"""so many words in a row are no coincidence (GPT-3, arXiv 2005.14165, appendix C, takes the same)"""
Hashes = npt.NDArray[np.uint64]


def hashes(tokenizer: PreTrainedTokenizerBase, window: Window, frame: Frame) -> Hashes:
    """Hashes of every run of RUN_WORDS words in a window, ascending; blind to case, layout and punctuation.

    What the chat template writes itself doesn't count.
    """
    found = {h for _, piece in frame.pieces(window) for h in text_hashes(str(tokenizer.decode(piece.tolist())))}
    return np.array(sorted(found), np.uint64)


def text_hashes(text: str) -> set[int]:
    """Hashes of every run of RUN_WORDS words."""
    return {int.from_bytes(hashlib.blake2b(" ".join(run).encode(), digest_size=8).digest(), "little")
            for run in word_runs(text, RUN_WORDS)}


class Known:
    """Text that other windows may not repeat, not even a run of its words: windows, and others' hashes.

    Attributes:
        repeats: windows that `without` left out so far.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, windows: Iterable[Window],
                 others: Iterable[Hashes] = ()) -> None:
        self._tokenizer, self._frame = tokenizer, Frame.of(tokenizer)
        own = (hashes(tokenizer, window, self._frame) for window in windows)
        self._hashes = np.unique(np.concatenate([np.zeros(0, np.uint64), *own, *others]))
        self.repeats = 0

    def shared(self, window: Window) -> Hashes:
        """Hashes of the runs that stand here and there, ascending."""
        return np.intersect1d(hashes(self._tokenizer, window, self._frame), self._hashes)

    def without(self, windows: Iterable[Window]) -> Iterator[Window]:
        """The windows that repeat nothing of it."""
        for window in windows:
            if len(self.shared(window)):
                self.repeats += 1
            else:
                yield window
