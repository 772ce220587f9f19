"""Two real models that are only reported on: their shipped recipes as far as the quantized model, for an iPhone as far
as the package, which have to hold their gates. Their packages may vanish from the package index, and then there is
nothing to report."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from edgeforge import pipeline, recipe
from edgeforge.gates import Check

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.nightly


RECIPES = {"qwen2.5-coder-0.5b-w4-qnn": ("qwen2.5-coder-0.5b-instruct", "export"),
           "gemma-3-270m-w4-qnn": ("gemma-3-270m", "export"), "gemma-3-270m-iphone": ("gemma-3-270m", "bundle")}
"""the models by their names in scripts/fetch_models.py, and the first stage that is not wanted"""


class _EnoughError(Exception):
    """The quantized model is there, and what comes behind it is not wanted."""


@pytest.fixture(params=RECIPES)
def shipped(request: pytest.FixtureRequest) -> str:
    """The name of a recipe whose checkpoint is there, or was fetched."""
    name = RECIPES[request.param][0]
    script = ROOT / "scripts" / "fetch_models.py"
    fetched = subprocess.run([sys.executable, script, name, ROOT / "models" / name],
                             capture_output=True, text=True, timeout=1800, check=False)
    if fetched.returncode:
        pytest.skip(f"{name} can't be had: {fetched.stderr.strip()}")
    return str(request.param)


def test_the_quantized_model_holds_its_gates(shipped: str, tmp_path: Path) -> None:
    name, behind = RECIPES[shipped]
    raw = yaml.safe_load((ROOT / "recipes" / f"{shipped}.yaml").read_text(encoding="utf-8"))
    raw |= {"model": str(ROOT / "models" / name), "out": str(tmp_path / "bundle")}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    checks: dict[str, Check] = {}

    def tell(event: pipeline.Event) -> None:
        checks.update({check.name: check for check in event.checks})
        if event.stage == behind:
            raise _EnoughError

    with contextlib.suppress(_EnoughError):
        pipeline.build(recipe.load(path), tell)
    assert "quantize: KL" in checks
    assert [str(check) for check in checks.values() if not check.passed] == []
