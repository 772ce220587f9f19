"""How much memory a piece of work needs: the resident set of this process and all its children, sampled."""

from __future__ import annotations

import ctypes
import gc
import threading
from types import TracebackType
from typing import Self

import psutil

_EVERY_S = 0.2


class TreePeak:
    """`with TreePeak() as peak: ...`; peak.mib is the largest sum seen while the block ran."""

    def __init__(self) -> None:
        self.mib = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        root = psutil.Process()
        while True:
            tree = [root, *root.children(recursive=True)]
            self.mib = max(self.mib, sum(map(_resident, tree)) >> 20)
            if self._stop.wait(_EVERY_S):
                return


def release() -> None:
    """Gives freed memory back to the system. The C library keeps it otherwise: 1.6 GB after the weights of a model of
    135M parameters were fitted. Nothing where there is no such call (it is glibc's)."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:  # it ended since it was listed
        return 0
