"""Pure measures over arrays: the one place where a decibel, a nat or a flip is computed.

Logit arrays are [tokens, vocab] float; every function accumulates in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]
Ints = npt.NDArray[np.integer]


def sqnr_db(reference: Array, actual: Array) -> float:
    """Signal to quantization-noise ratio in dB: 10 log10(|ref|^2 / |ref - actual|^2).

    Infinite when both are equal, -inf when a value is not finite or the reference is all zero
    and the actual is not.
    """
    if reference.shape != actual.shape:
        raise ValueError(f"shapes differ: {reference.shape} vs {actual.shape}")
    ref = np.asarray(reference, np.float64)
    with np.errstate(invalid="ignore"):
        noise = ref - np.asarray(actual, np.float64)
    if not np.isfinite(noise).all():
        return -math.inf
    return _ratio_db(float(np.square(ref).sum()), float(np.square(noise).sum()))


def worst_row_sqnr_db(reference: Array, actual: Array) -> tuple[float, int]:
    """Lowest SQNR over the rows of the last axis and the flat index of that row."""
    ref = np.asarray(reference, np.float64).reshape(-1, reference.shape[-1])
    with np.errstate(invalid="ignore"):
        noise = ref - np.asarray(actual, np.float64).reshape(ref.shape)
    power, error = np.square(ref).sum(-1), np.square(noise).sum(-1)
    rows = [_ratio_db(float(p), float(e)) if math.isfinite(e) else -math.inf
            for p, e in zip(power, error, strict=True)]
    worst = int(np.argmin(rows))
    return rows[worst], worst


def log_softmax(logits: Array) -> npt.NDArray[np.float64]:
    """Row-wise log-softmax in float64."""
    x = np.asarray(logits, np.float64)
    x = x - x.max(-1, keepdims=True)
    logs: npt.NDArray[np.float64] = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return logs


@dataclass(frozen=True)
class LogitStats:
    """How far a model's next-token distributions are from a reference's, on the same text."""

    tokens: int
    sqnr: float
    """raw logit SQNR, dB"""
    centred_sqnr: float
    """logit SQNR after per-token mean subtraction, dB"""
    worst_token_sqnr: float
    worst_token: int
    kl: float
    """mean KL(reference || actual), nats per token"""
    flips: float
    """share of tokens whose argmax changes"""
    ppl_reference: float
    ppl: float

    @property
    def ppl_ratio(self) -> float:
        return self.ppl / self.ppl_reference


Totals = npt.NDArray[np.float64]
"""[..., 10]: what a piece of text adds up to. Power of the logits and of their error, the same two mean-centred; KL;
flips; nats of the reference and of the actual; rows; rows whose next token is known. Totals of pieces add."""


def figures(totals: Totals) -> dict[str, npt.NDArray[np.float64]]:
    """Figures [...] by name: `ppl`, `ppl_reference`, `ppl_ratio`, `kl`, `flips`, `sqnr` and `centred_sqnr` (dB)."""
    power, error, centred, centred_error, kl, flips, reference, actual, rows, known = np.moveaxis(totals, -1, 0)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        found = {"ppl": np.exp(actual / known), "ppl_reference": np.exp(reference / known),
                 "ppl_ratio": np.exp((actual - reference) / known), "kl": kl / rows, "flips": flips / rows,
                 "sqnr": 10 * np.log10(power / error), "centred_sqnr": 10 * np.log10(centred / centred_error)}
    return {name: np.asarray(value) for name, value in found.items()}


class LogitMeter:
    """Accumulates :class:`LogitStats` window by window, so that no run holds all logits."""

    def __init__(self) -> None:
        self._sums = np.zeros(8, np.float64)
        self._rows = 0
        self._predicted = 0
        self._worst = (math.inf, -1)

    def add(self, reference: Array, actual: Array, targets: Ints) -> None:
        """Adds one window. A row with a value that is not finite spoils every figure: -inf dB, inf nats.

        Args:
            reference, actual: [tokens, vocab] logits.
            targets: [n <= tokens] ids that rows 0..n-1 should predict.
        """
        ref, act = np.asarray(reference, np.float64), np.asarray(actual, np.float64)
        db, row = worst_row_sqnr_db(ref, act)
        if db < self._worst[0]:
            self._worst = (db, self._rows + row)
        broken = np.logical_not(np.isfinite(act)).any(-1)
        lost = math.inf if broken.any() else 0.0
        act = np.where(broken[:, None], 0.0, act)
        p, q = log_softmax(ref), log_softmax(act)
        centred_ref, centred_act = ref - ref.mean(-1, keepdims=True), act - act.mean(-1, keepdims=True)
        n, rows = len(targets), np.arange(len(targets))
        self._sums += [
            np.square(ref).sum(), np.square(ref - act).sum() + lost,
            np.square(centred_ref).sum(), np.square(centred_ref - centred_act).sum() + lost,
            (np.exp(p) * (p - q)).sum() + lost, ((ref.argmax(-1) != act.argmax(-1)) | broken).sum(),
            -p[rows, targets].sum() if n else 0.0, (-q[rows, targets].sum() if n else 0.0) + lost,
        ]
        self._rows += len(ref)
        self._predicted += n

    @property
    def totals(self) -> Totals:
        """[10], see Totals."""
        return np.array([*self._sums, self._rows, self._predicted], np.float64)

    def result(self) -> LogitStats:
        """The figures over all windows so far; needs at least one row and one target."""
        if not self._rows or not self._predicted:
            raise ValueError("no logits were measured")
        s, rows, n = self._sums, self._rows, self._predicted
        with np.errstate(over="ignore"):
            ppl_reference, ppl = float(np.exp(s[6] / n)), float(np.exp(s[7] / n))
        return LogitStats(
            tokens=rows, sqnr=_ratio_db(s[0], s[1]), centred_sqnr=_ratio_db(s[2], s[3]),
            worst_token_sqnr=self._worst[0], worst_token=self._worst[1],
            kl=float(s[4] / rows), flips=float(s[5] / rows), ppl_reference=ppl_reference, ppl=ppl)


def _ratio_db(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    if signal == 0 or noise == math.inf:
        return -math.inf
    return 10 * math.log10(signal / noise)
