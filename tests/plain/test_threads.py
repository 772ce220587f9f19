"""torch's threads: as many as the build's key says in every stage, and as many as before behind it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import plain_models
import pytest
import torch
import yaml
from tiny_build import Built

from edgeforge import check, pipeline, recipe
from edgeforge.errors import GateError
from edgeforge.pipeline import Event
from edgeforge.stages.plan import STAGES

ELSEWHERE = 3
"""threads of whoever calls; no build here has as many, which is asserted"""


@pytest.fixture(autouse=True)
def elsewhere() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(ELSEWHERE)
    yield
    torch.set_num_threads(before)


def seen(path: Path, wanted: int) -> dict[str, set[int]]:
    """What torch had while stages told what they do; the build ends at a gate that nothing passes."""
    found: dict[str, set[int]] = {}

    def look(event: Event) -> None:
        if event.kind == "step":
            found.setdefault(f"{event.stage}: {event.text.split(' ')[0]}", set()).add(torch.get_num_threads())

    wished = recipe.load(path)
    assert wanted != ELSEWHERE
    with pytest.raises(GateError):
        pipeline.build(wished, look)
    assert torch.get_num_threads() == ELSEWHERE
    return found


def threads(path: Path) -> int:
    wished = recipe.load(path)
    return pipeline.start(wished, check.open_model(wished)).threads


def test_the_fit_and_the_sensitivity_that_comes_before_it(tmp_path: Path) -> None:
    onnx = plain_models.export(plain_models.cnn(), plain_models.images(8), tmp_path / "cnn.onnx")
    more = ("quantize: {weights: 4, quality: fast, budget: {bits_per_weight: 7}}\n"
            "gates: {quantize_db: 150}")
    path = plain_models.recipe(tmp_path, onnx, plain_models.images(8), more)
    found = seen(path, threads(path))
    assert found["quantize: sensitivity"] == found["quantize: weights"] == {threads(path)}


def test_the_reference_of_every_gate(checkpoint_folder: Path, tmp_path: Path) -> None:
    raw = {"model": str(checkpoint_folder), "out": str(tmp_path / "out" / "tiny"), "gates": {"adapt_db": 150},
           "target": {"chip": "snapdragon-8-gen-3", "context": 256, "prefill": 32}}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    assert seen(path, threads(path))["adapt: reference"] == {threads(path)}


def test_a_build_that_finds_all_of_it_finished_loads_no_torch(built: Built) -> None:
    program = ("import sys; from pathlib import Path; from edgeforge import pipeline, recipe\n"
               "pipeline.build(recipe.load(Path(sys.argv[1])), lambda event: print(event.kind))\n"
               "print(sorted({'torch', 'transformers'} & set(sys.modules)))")
    command = [sys.executable, "-c", program, str(built.recipe)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == [*["cached"] * len(STAGES), "[]", ""]
