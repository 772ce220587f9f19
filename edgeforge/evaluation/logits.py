"""A runnable artifact against the HuggingFace model's own logits, on real text up to the built context."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from edgeforge_runtime.session import Session

from edgeforge.artifact import IDS
from edgeforge.metrics import LogitMeter, LogitStats

_DECODED = 16
"""tokens at a window's end that are read one by one, so that the AR-1 graph is measured by itself"""

Window = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Measured:
    """prefill: rows that came out of chunked prefill. decode: rows of AR-1 steps behind it. all: both."""

    prefill: LogitStats
    decode: LogitStats
    all: LogitStats


def save_reference(folder: Path, windows: list[Window], logits: Iterator[Floats]) -> None:
    """Writes ids [windows, tokens] and, a file a window, logits float32 [tokens, vocab] into folder."""
    folder.mkdir()
    np.save(folder / IDS, np.stack(windows))
    for index, rows in enumerate(logits):
        np.save(_logits(folder, index), rows)


def _logits(folder: Path, index: int) -> Path:
    return folder / f"logits_{index}.npy"


def hf_logits(model: torch.nn.Module, windows: list[Window]) -> Iterator[Floats]:
    """The float32 HuggingFace model's logits, one window at a time."""
    for ids in windows:
        with torch.no_grad():
            yield model(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits[0].float().numpy()


def session_logits(session: Session, ids: Window) -> Iterator[Floats]:
    """Logits [rows, vocab] of a window: chunked prefill, then single steps for its last tokens."""
    prompt = len(ids) - _DECODED
    yield from session.score([int(t) for t in ids[:prompt]])
    for token in ids[prompt:]:
        yield session.step(int(token))[None]


def measure(session: Session, reference: Path) -> Measured:
    """Runs every reference window through session and compares row by row."""
    meters = LogitMeter(), LogitMeter(), LogitMeter()
    for index, ids in enumerate(np.load(reference / IDS)):
        rows = np.load(_logits(reference, index), mmap_mode="r")
        for start, expected, made, targets in pieces(session_logits(session, ids), rows, ids):
            for each in (meters[0 if start < len(ids) - _DECODED else 1], meters[2]):
                each.add(expected, made, targets)
    return Measured(*(meter.result() for meter in meters))


def meter(made: Iterable[Floats], reference: Floats, ids: Window) -> LogitMeter:
    """What one window adds up to.

    Args:
        made: logits of the window in pieces [rows, vocab], in order.
        reference: float32 [tokens, vocab].
    """
    found = LogitMeter()
    for _, expected, actual, targets in pieces(made, reference, ids):
        found.add(expected, actual, targets)
    return found


def pieces(made: Iterable[Floats], reference: Floats, ids: Window) -> Iterator[tuple[int, Floats, Floats, Window]]:
    """First row, reference, logits and next tokens of each piece."""
    row = 0
    for rows in made:
        stop = row + len(rows)
        yield row, reference[row:stop], rows, ids[row + 1: stop + 1]
        row = stop
