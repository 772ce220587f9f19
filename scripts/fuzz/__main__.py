"""Damaged input by the thousand: `python scripts/fuzz --cases 10000`. Exit 1 when our code did worse than refuse.

Each case is its kind and seed; `--kind table --first 417 --cases 1` runs one again, and its files are kept for looking.
"""

from __future__ import annotations

import argparse
import collections
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from cases import KINDS, Kind

_SILENT_S, _PATIENCE = 30.0, 3
"""a worker that says nothing for so long, so often, is stuck outside Python, where its alarm cannot ring; more than
once, because a machine that stalls runs down one wait while the worker gets nothing done"""


@dataclass
class Outcome:
    """What came of a kind's cases. findings: seed -> what is wrong."""

    cases: int = 0
    findings: dict[int, str] = field(default_factory=dict)


def run(kind: Kind, first: int, count: int, keep: Path | None) -> Outcome:
    """All cases of a kind; a worker that dies or hangs is a finding, and another one goes on behind it."""
    outcome, seed, stop = Outcome(), first, first + count
    while seed < stop:
        last, ended = _worker(kind, seed, stop - seed, keep, outcome)
        if ended is None:
            break
        outcome.findings[last] = ended
        seed = last + 1
    outcome.cases = count
    return outcome


def _worker(kind: Kind, first: int, count: int, keep: Path | None, outcome: Outcome) -> tuple[int, str | None]:
    """Runs one worker to its end; returns the last seed that it began, and how it died (None: it finished)."""
    with tempfile.TemporaryDirectory(prefix="edgeforge-fuzz-") as folder, tempfile.TemporaryFile() as log:
        words = [sys.executable, str(Path(__file__).with_name("worker.py")), kind.name, str(first), str(count), folder]
        child = subprocess.Popen(words + ([str(keep)] if keep else []), stdout=subprocess.PIPE, stderr=log, text=True)
        lines: queue.Queue[str | None] = queue.Queue()
        reader = threading.Thread(target=lambda: [lines.put(row) for row in (*child.stdout, None)],  # type: ignore[misc]
                                  daemon=True)
        reader.start()
        last, done, silent = first - 1, False, 0
        while True:
            try:
                row = lines.get(timeout=_SILENT_S)
            except queue.Empty:
                silent += 1
                if silent < _PATIENCE:
                    continue
                child.kill()
                break
            if row is None:
                break
            silent = 0
            told = json.loads(row)
            done, last = "done" in told, told.get("seed", last)
            if "found" in told:
                outcome.findings[last] = told["found"]
        code = child.wait()
        if done:
            return last, None
        log.seek(0)
        tail = " | ".join(log.read().decode(errors="replace").strip().splitlines()[-3:])
        how = f"silent for {silent * _SILENT_S:.0f} s" if silent else f"worker ended with {code}: {tail[:300]}"
        if last < first:
            raise SystemExit(f"{kind.name} did not start: {how}")
        return last, how


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser("fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="in all, shared out among the kinds (10000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--kind", choices=sorted(KINDS), action="append", help="only this kind; may be repeated")
    parser.add_argument("--keep", type=Path, default=Path("out/fuzz-cases"),
                        help="where failing cases go (out/fuzz-cases)")
    options = parser.parse_args()
    kinds = [KINDS[k] for k in options.kind or KINDS]
    share = options.cases / sum(k.weight for k in kinds)
    bad = 0
    for kind in kinds:
        begun, count = time.monotonic(), max(1, round(share * kind.weight))
        outcome = run(kind, options.first, count, options.keep)
        print(f"{kind.name:12} {count:6} cases from seed {options.first}, {time.monotonic() - begun:6.1f} s, "
              f"{len(outcome.findings)} findings", flush=True)
        by_text = collections.defaultdict(list)
        for seed, text in outcome.findings.items():
            by_text[text].append(seed)
        for text, seeds in by_text.items():
            print(f"  {kind.name}:{seeds[0]} ({len(seeds)}x) {text}", flush=True)
        bad += len(outcome.findings)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
