"""One CNN build for every test that needs a plain bundle."""

from __future__ import annotations

import shutil
from pathlib import Path

import plain_models as models
import pytest
from builds import cli


@pytest.fixture(scope="session")
def built_cnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe of a finished build; the bundle is out/bundle beside it."""
    folder = tmp_path_factory.mktemp("cnn")
    onnx = models.export(models.cnn(), models.images(), folder / "small cnn.onnx")
    path = models.recipe(folder, onnx, models.images())
    done = cli("build", path)
    assert done.returncode == 0, done.stdout + done.stderr
    return path


@pytest.fixture
def copied_cnn(built_cnn: Path, tmp_path: Path) -> Path:
    """The recipe of a copy of model, samples, cache and bundle, all at a place of their own."""
    folder = Path(shutil.copytree(built_cnn.parent, tmp_path / "cnn"))
    path = folder / built_cnn.name
    path.write_text(path.read_text(encoding="utf-8").replace(str(built_cnn.parent), str(folder)), encoding="utf-8")
    return path
