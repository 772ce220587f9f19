"""Checkpoints that tests may damage, and no network."""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from checkpoints import tiny


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """A tied and an untied checkpoint; tests work on copies."""
    made = {}
    for tied in (True, False):
        made[tied] = tmp_path_factory.mktemp("checkpoint")
        tiny(tied).save_pretrained(made[tied])
    return made


@pytest.fixture
def folder(templates: dict[bool, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(templates[True], tmp_path / "tied"))


@pytest.fixture
def untied(templates: dict[bool, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(templates[False], tmp_path / "untied"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "sha256.json"


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a checkpoint on disk must not reach for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
