"""In CI nothing may be skipped: a missing vendor wheel there is a failure, not a quiet pass. And the ledger's option."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("edgeforge", deadline=None)  # shared machines stall; a slow example is not a wrong one
settings.load_profile("edgeforge")

sys.path.insert(0, str(Path(__file__).parent / "tests"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", choices=("fast", "slow", "nightly"), help="write what each file took to the ledger")


def pytest_configure(config: pytest.Config) -> None:
    column = config.getoption("--minutes")
    if column and not hasattr(config, "workerinput"):
        from ledger import Recorder

        config.pluginmanager.register(Recorder(column))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped and os.environ.get("CI"):
        terminalreporter.write_line(f"{len(skipped)} tests were skipped, and in CI none may be", red=True)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and reporter.stats.get("skipped") and os.environ.get("CI") and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
