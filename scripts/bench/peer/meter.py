"""Time and memory of a stretch of a process. Standard library only: AIMET's interpreter reads it too."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def measured() -> Iterator[dict[str, float]]:
    """Fills in, at the end: seconds of all threads (cpu) and by the clock (wall), and the process's peak (MiB).

    The peak is the process's own since it began: getrusage's would start from that of the process that forked it.
    """
    spent: dict[str, float] = {}
    cpu, wall = time.process_time(), time.perf_counter()
    yield spent
    spent |= {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall, "mib": peak_mib()}


def peak_mib() -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(found[1]) / 1024 if found else float("nan")
