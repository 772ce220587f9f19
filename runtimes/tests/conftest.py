from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test may depend on, or write to, the folder that pytest was started in."""
    monkeypatch.chdir(tmp_path)
