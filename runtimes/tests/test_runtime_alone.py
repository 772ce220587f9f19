"""Law 10: the device side needs numpy, a tokenizer and the accelerator's library, never torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import edgeforge_runtime
import pytest
from tiny_models import Tiny
from tiny_tokenizers import byte_level, write

BANNED = ("torch", "transformers", "pydantic", "rich", "onnx", "edgeforge", "onnxruntime_qnn")
ANSWER = f"""
import pkgutil, sys
import edgeforge_runtime
from edgeforge_runtime.__main__ import main
names = [m.name for m in pkgutil.walk_packages(edgeforge_runtime.__path__, "edgeforge_runtime.")]
for name in names:
    if name != "edgeforge_runtime.executors.htp_worker":
        __import__(name)
code = main([sys.argv[1], "ABC", "--raw", "--max-tokens", "3"])
print(code, len(names) > 15, [m for m in {BANNED} if m in sys.modules])
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = Tiny(quantized=True).write(tmp_path, tokenizer="tokenizer")
    write(folder / "tokenizer", byte_level())
    return folder


def answer(python: Path | str, bundle: Path, environment: dict[str, str]) -> str:
    command = [str(python), "-c", ANSWER, str(bundle)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_nothing_heavy_is_imported(bundle: Path) -> None:
    """Also where torch is installed."""
    root = str(Path(edgeforge_runtime.__file__).parents[1])
    assert answer(sys.executable, bundle, {**os.environ, "PYTHONPATH": root}) == "0 True []"


@pytest.mark.slow
def test_installed_alone(bundle: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(Path(__file__).parents[1], source, ignore=shutil.ignore_patterns("tests", "*.egg-info"))
    venv.create(tmp_path / "venv", with_pip=True)
    scripts = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    install = [str(scripts / "python"), "-m", "pip", "install", "--quiet", str(source)]
    subprocess.run(install, check=True, env=environment)
    assert answer(scripts / "python", bundle, environment) == "0 True []"
    listed = subprocess.run(
        [str(scripts / "python"), "-m", "pip", "list", "--format=freeze"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    installed = {line.split("==")[0].lower().replace("_", "-") for line in listed.stdout.splitlines()}
    assert "edgeforge-runtime" in installed
    assert not installed & {name.replace("_", "-") for name in BANNED}
