"""A runnable artifact against the HuggingFace model's own logits, on real text up to the built context."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from edgeforge_runtime.session import Session

from edgeforge.metrics import LogitMeter, LogitStats

IDS = "ids.npy"
_DECODED = 16
"""tokens at a window's end that are read one by one, so that the AR-1 graph is measured by itself"""

Window = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Measured:
    """prefill: rows that came out of chunked prefill. decode: rows of AR-1 steps behind it. all: both."""

    prefill: LogitStats
    decode: LogitStats
    all: LogitStats


def save_reference(folder: Path, windows: list[Window], logits: Iterator[npt.NDArray[np.float32]]) -> None:
    """Writes ids [windows, tokens] and, a file a window, logits float32 [tokens, vocab] into folder."""
    folder.mkdir()
    np.save(folder / IDS, np.stack(windows))
    for index, rows in enumerate(logits):
        np.save(_logits(folder, index), rows)


def _logits(folder: Path, index: int) -> Path:
    return folder / f"logits_{index}.npy"


def hf_logits(model: torch.nn.Module, windows: list[Window]) -> Iterator[npt.NDArray[np.float32]]:
    """The float32 HuggingFace model's logits, one window at a time."""
    for ids in windows:
        with torch.no_grad():
            yield model(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits[0].float().numpy()


def session_logits(session: Session, ids: Window) -> Iterator[npt.NDArray[np.float32]]:
    """Logits [rows, vocab] of a window: chunked prefill, then single steps for its last tokens."""
    prompt = len(ids) - _DECODED
    yield from session.score([int(t) for t in ids[:prompt]])
    for token in ids[prompt:]:
        yield session.step(int(token))[None]


def measure(session: Session, reference: Path) -> Measured:
    """Runs every reference window through session and compares row by row."""
    meters = LogitMeter(), LogitMeter(), LogitMeter()
    for index, ids in enumerate(np.load(reference / IDS)):
        logits = np.load(_logits(reference, index), mmap_mode="r")
        row = 0
        for made in session_logits(session, ids):
            stop = row + len(made)
            targets = ids[row + 1: stop + 1]
            prefill = row < len(ids) - _DECODED
            for meter in (meters[0 if prefill else 1], meters[2]):
                meter.add(logits[row:stop], made, targets)
            row = stop
    return Measured(*(meter.result() for meter in meters))
