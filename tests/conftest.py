"""One tiny build for every test that needs a finished bundle."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import tiny_checkpoint
from tiny_build import Built

from edgeforge import pipeline, recipe
from edgeforge.pipeline import Event

RECIPE = """\
model: {model}
out: {out}
target: {{chip: snapdragon-8-gen-3, context: 256, prefill: 32}}
calibrate: {{windows: 8, tokens: 128}}
gates: {{quantize_db: 25}}
"""


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint.make(tmp_path_factory.mktemp("checkpoint") / "tiny-llama")


@pytest.fixture(scope="session")
def built(checkpoint_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The tiny Llama through every stage, Qualcomm's compiler included; in a folder with a space and an umlaut."""
    root = tmp_path_factory.mktemp("build") / "für alle"
    root.mkdir()
    path = root / "tiny.yaml"
    path.write_text(RECIPE.format(model=checkpoint_folder, out=root / "out" / "tiny"), encoding="utf-8")
    events: list[Event] = []
    bundle = pipeline.build(recipe.load(path), events.append)
    return Built(bundle, root / "out" / ".edgeforge", path, tuple(events))
