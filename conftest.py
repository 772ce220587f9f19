"""In CI nothing may be skipped: a missing vendor wheel there is a failure, not a quiet pass."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile("edgeforge", deadline=None)  # shared machines stall; a slow example is not a wrong one
settings.load_profile("edgeforge")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped and os.environ.get("CI"):
        terminalreporter.write_line(f"{len(skipped)} tests were skipped, and in CI none may be", red=True)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and reporter.stats.get("skipped") and os.environ.get("CI") and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
