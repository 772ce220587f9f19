"""How long a full build takes and how much memory its whole process tree needs, stage by stage.

    python scripts/bench/build.py recipes/smollm2-135m-qnn.yaml

Builds into a fresh cache, so nothing is reused; prints a table and the ratio to the bounds (15 min, 6 GiB).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

LIMIT_S, LIMIT_GIB = 15 * 60, 6.0


def main() -> int:
    path = Path(sys.argv[1]).resolve()
    raw = yaml.safe_load(path.read_text())
    with tempfile.TemporaryDirectory(prefix="edgeforge-bench-") as scratch:
        raw["model"] = str((path.parent / raw["model"]).resolve())
        if text := raw.get("calibrate", {}).get("text"):
            raw["calibrate"]["text"] = str((path.parent / text).resolve())
        raw["out"] = str(Path(scratch) / "out" / "bench")
        recipe = Path(scratch) / "recipe.yaml"
        recipe.write_text(yaml.safe_dump(raw))
        return measure(recipe)


def measure(recipe: Path) -> int:
    command = [sys.executable, "-m", "edgeforge", "build", str(recipe), "--json"]
    begun, peak = time.perf_counter(), 0.0
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    print(f"{'stage':14}{'seconds':>9}{'peak GiB':>10}")
    for line in child.stdout or ():
        row = json.loads(line)
        if row["event"] == "done":
            peak = max(peak, row["peak_mib"] / 1024)
            print(f"{row['stage']:14}{row['seconds']:9.1f}{row['peak_mib'] / 1024:10.2f}", flush=True)
    code = child.wait()
    spent = time.perf_counter() - begun
    print(f"{'whole build':14}{spent:9.1f}{peak:10.2f}")
    print(f"{'of the bounds':14}{spent / LIMIT_S:9.2f}{peak / LIMIT_GIB:10.2f}   ({LIMIT_S} s, {LIMIT_GIB:g} GiB)")
    return code


if __name__ == "__main__":
    sys.exit(main())
