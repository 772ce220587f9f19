"""The ledger is complete, and what CI runs fits."""

from __future__ import annotations

import ledger


def test_every_test_file_has_its_minutes_and_its_issue() -> None:
    found = {str(p.relative_to(ledger.ROOT)) for room in ("tests", "runtimes/tests")
             for p in (ledger.ROOT / room).rglob("test_*.py")}
    rows = ledger.load()
    assert set(rows) == found, "run pytest --minutes over the new files"
    assert not [f for f, row in rows.items() if not row["issue"].isdigit()], "which issue is it of?"


def test_ci_fits_into_its_minutes() -> None:
    assert ledger.ci_minutes(ledger.load()) <= ledger.CI_MINUTES
