"""How long a full build takes and how much memory its whole process tree needs, stage by stage.

    python scripts/bench/build.py recipes/smollm2-135m-qnn.yaml

Builds into a fresh cache, so nothing is reused; prints a table and the ratio to the bounds (15 min, 6 GiB).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import yaml

LIMIT_S, LIMIT_GIB = 15 * 60, 6.0


class Watch(threading.Thread):
    """Samples the resident memory of a process and all its descendants."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._root = psutil.Process(pid)
        self._lock = threading.Lock()
        self._peak = 0

    def run(self) -> None:
        while self._root.is_running() and self._root.status() != psutil.STATUS_ZOMBIE:
            total = sum(self._rss(p) for p in [self._root, *self._root.children(recursive=True)])
            with self._lock:
                self._peak = max(self._peak, total)
            time.sleep(0.1)

    @staticmethod
    def _rss(process: psutil.Process) -> int:
        try:
            return int(process.memory_info().rss)
        except psutil.Error:
            return 0

    def take(self) -> float:
        """Peak GiB since the last call."""
        with self._lock:
            peak, self._peak = self._peak, 0
        return peak / 2**30


def main() -> int:
    path = Path(sys.argv[1]).resolve()
    raw = yaml.safe_load(path.read_text())
    with tempfile.TemporaryDirectory(prefix="edgeforge-bench-") as scratch:
        raw["model"] = str((path.parent / raw["model"]).resolve())
        raw["out"] = str(Path(scratch) / "out" / "bench")
        recipe = Path(scratch) / "recipe.yaml"
        recipe.write_text(yaml.safe_dump(raw))
        return measure(recipe)


def measure(recipe: Path) -> int:
    command = [sys.executable, "-m", "edgeforge", "build", str(recipe), "--json"]
    begun = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    watch = Watch(child.pid)
    watch.start()
    peak = 0.0
    print(f"{'stage':12} {'seconds':>9} {'peak GiB':>9}")
    for line in child.stdout or ():
        row = json.loads(line)
        if row["event"] == "done":
            now = watch.take()
            peak = max(peak, now)
            print(f"{row['stage']:12} {row['seconds']:9.1f} {now:9.2f}", flush=True)
    code = child.wait()
    spent = time.perf_counter() - begun
    print(f"{'whole build':12} {spent:9.1f} {peak:9.2f}")
    print(f"of the bounds {spent / LIMIT_S:8.2f} {peak / LIMIT_GIB:9.2f}   ({LIMIT_S} s, {LIMIT_GIB} GiB)")
    return code


if __name__ == "__main__":
    sys.exit(main())
