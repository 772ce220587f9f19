"""Two real models that are only reported on: their shipped recipes as far as the quantized model, which has to hold its
gates. Their packages may vanish from the package index, and then there is nothing to report."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from edgeforge import pipeline, recipe
from edgeforge.gates import Check

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.nightly


@dataclass(frozen=True)
class Reported:
    """recipe: of the repository. float_ppl: the float model's perplexity on the gates' text. tables: RoPE's."""

    recipe: str
    checkpoint: str
    float_ppl: float


MODELS = (
    Reported("qwen2.5-coder-0.5b-w4-qnn.yaml", "qwen2.5-coder-0.5b-instruct", 0.0),
    Reported("gemma-3-270m-w4-qnn.yaml", "gemma-3-270m", 0.0),
)


class _EnoughError(Exception):
    """The quantized model is there, and what comes behind it is not wanted."""


@pytest.fixture(params=MODELS, ids=lambda model: model.checkpoint)
def model(request: pytest.FixtureRequest) -> Reported:
    """Its checkpoint is there, or is fetched."""
    found: Reported = request.param
    script = ROOT / "scripts" / "fetch_models.py"
    fetched = subprocess.run([sys.executable, script, found.checkpoint, ROOT / "models" / found.checkpoint],
                             capture_output=True, text=True, timeout=1800, check=False)
    if fetched.returncode:
        pytest.skip(f"{found.checkpoint} can't be had: {fetched.stderr.strip()}")
    return found


def test_the_quantized_model_holds_its_gates(model: Reported, tmp_path: Path) -> None:
    raw = yaml.safe_load((ROOT / "recipes" / model.recipe).read_text(encoding="utf-8"))
    raw |= {"model": str(ROOT / "models" / model.checkpoint), "out": str(tmp_path / "bundle")}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    checks: dict[str, Check] = {}

    def tell(event: pipeline.Event) -> None:
        checks.update({check.name: check for check in event.checks})
        if event.stage == "export":
            raise _EnoughError

    with contextlib.suppress(_EnoughError):
        pipeline.build(recipe.load(path), tell)
    assert "quantize: KL" in checks
    assert [str(check) for check in checks.values() if not check.passed] == []
