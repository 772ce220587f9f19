"""What each test file costs: a table of minutes that CI has to fit into.

`pytest --minutes fast|slow|nightly` rewrites that column for the files it ran. A new file gets the issue "?",
which the ledger's own test refuses: write down the issue that it belongs to.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEDGER = ROOT / "tests" / "minutes.tsv"
COLUMNS = ("fast", "slow", "nightly")
CI_MINUTES, WORKERS = 40.0, 2
"""all of CI; its tests run in two processes"""
UNMEASURED = "-"
"""nothing ran there yet: scripts/nightly.sh measures it"""

Row = dict[str, str]


def load() -> dict[str, Row]:
    """Rows by test file: issue, and minutes in each of COLUMNS."""
    head, *lines = LEDGER.read_text(encoding="utf-8").splitlines()
    names = head.split("\t")
    return {row["file"]: row for line in lines for row in [dict(zip(names, line.split("\t"), strict=True))]}


def save(rows: dict[str, Row]) -> None:
    names = ("file", "issue", *COLUMNS)
    lines = ["\t".join(names), *("\t".join(rows[f][n] for n in names) for f in sorted(rows))]
    LEDGER.write_text("\n".join(lines) + "\n", encoding="utf-8")


def ci_minutes(rows: dict[str, Row]) -> float:
    """Wall time of the tests in CI."""
    return sum(_minutes(r["fast"]) + _minutes(r["slow"]) for r in rows.values()) / WORKERS


def _minutes(cell: str) -> float:
    return 0.0 if cell == UNMEASURED else float(cell)


class Recorder:
    """Adds up the time of each test file and rewrites one column of the ledger when the run ends well."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.OK:
            rows = load()
            for file, seconds in self._seconds.items():
                empty = {"file": file, "issue": "?", **dict.fromkeys(COLUMNS, UNMEASURED)}
                rows.setdefault(file, empty)[self._column] = f"{seconds / 60:.1f}"
            save(rows)
