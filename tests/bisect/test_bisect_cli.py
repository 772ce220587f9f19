"""The command's own refusals; what it finds is tested beside the compiler."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgeforge import cli
from edgeforge.errors import EXIT_ERROR, EXIT_USAGE, EdgeForgeError


@pytest.mark.parametrize(("words", "message", "code"), [
    (["gone.onnx", "--chip", "snapdragon-8-gen-3"], "does not exist", EXIT_ERROR),
    (["text.onnx"], "which chip is it compiled for", EXIT_USAGE),
    (["text.onnx", "--chip", "snapdragon-8-gen-33"], "did you mean 'snapdragon-8-gen-3'", EXIT_USAGE),
    (["text.onnx", "--chip", "snapdragon-8-gen-3"], "is not a readable ONNX model", EXIT_ERROR),
    (["."], "holds no compile job", EXIT_ERROR),
    ([".", "--chip", "snapdragon-8-gen-3"], "are for an ONNX file", EXIT_USAGE),
])
def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str, code: int) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.onnx").write_text("hello " * 10)
    result = CliRunner().invoke(cli.app, ["bisect", *words])
    assert isinstance(result.exception, EdgeForgeError)
    assert message in str(result.exception)
    assert result.exception.exit_code == code
    assert sorted(p.name for p in tmp_path.iterdir()) == ["text.onnx"]
