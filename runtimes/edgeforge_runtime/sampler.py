"""Choosing the next token: greedy, or temperature with top-k and top-p."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .errors import LogitsError


@dataclass
class Sampler:
    """A seeded chooser; two with equal settings make equal choices from equal logits.

    temperature: 0 takes the largest logit (the lowest id among equals).
    top_k: candidates kept, the most likely ones; 0 keeps all.
    top_p: the fewest most likely candidates whose probabilities sum to at least this stay; at least one.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    _random: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and self.top_k >= 0 and 0 < self.top_p <= 1):
            raise ValueError(f"need temperature >= 0, top_k >= 0 and 0 < top_p <= 1, got {self}")
        self._random = np.random.default_rng(self.seed)

    def choose(self, logits: npt.NDArray[np.floating], limit: int) -> int:
        """One id below `limit`, so that rows which only pad the vocabulary are never chosen.

        Args:
            logits: [vocab]; -inf forbids an id.

        Raises:
            LogitsError: NaN or +inf among the first `limit`, or nothing finite.
        """
        known = np.asarray(logits[:limit], np.float64)
        best = int(np.argmax(known)) if known.size else -1
        if best < 0 or not np.isfinite(known[best]):
            raise LogitsError(f"no finite maximum among {known.size} logits: the graph's output is broken")
        if self.temperature == 0:
            return best
        ids, chances = self._candidates((known - known[best]) / self.temperature)
        total = np.cumsum(chances)
        drawn = np.searchsorted(total, self._random.random() * total[-1], side="right")
        return int(ids[min(int(drawn), len(ids) - 1)])  # rounding may put the draw on the sum itself

    def _candidates(
        self, scores: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
        """Ids and unnormalized probabilities that survive top-k and top-p, most likely first."""
        ids = np.arange(scores.size)
        if 0 < self.top_k < scores.size:
            ids = np.argpartition(-scores, self.top_k - 1)[: self.top_k]
        chances = np.exp(scores[ids])
        order = np.argsort(-chances, kind="stable")
        ids, chances = ids[order], chances[order]
        if self.top_p < 1:
            total = np.cumsum(chances)
            kept = int(np.searchsorted(total, self.top_p * total[-1], side="left")) + 1
            ids, chances = ids[:kept], chances[:kept]
        possible = chances > 0
        return ids[possible], chances[possible]
