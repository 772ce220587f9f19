"""The product: SmolLM2-135M-Instruct, the recipe that README builds, through Qualcomm's compiler."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edgeforge_runtime.session import Session
from edgeforge_runtime.text import TextCodec

from edgeforge.backends.qnn.binary import read_binaries

ROOT = Path(__file__).parent.parent
RECIPE, BUNDLE = ROOT / "recipes" / "smollm2-135m-qnn.yaml", ROOT / "out" / "smollm2-135m-qnn"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bundle() -> Path:
    """Built (or found finished) exactly as README says."""
    subprocess.run([sys.executable, "-m", "edgeforge", "build", str(RECIPE)], cwd=ROOT, check=True, timeout=2400)
    return BUNDLE


@pytest.fixture(scope="module")
def checks(bundle: Path) -> dict[str, dict[str, Any]]:
    report = json.loads((bundle / "report.json").read_text())
    return {c["name"]: c for s in report["stages"] for c in s["checks"]}


def test_float_stages_equal_huggingface(checks: dict[str, dict[str, Any]]) -> None:
    for stage, least in (("adapt", 60), ("optimize", 55), ("transform", 55)):
        assert checks[f"{stage}: prefill logits"]["value"] > least
        assert checks[f"{stage}: decode logits"]["value"] > least


def test_quantized_model_holds_its_gate(checks: dict[str, dict[str, Any]]) -> None:
    assert checks["quantize: logits"]["value"] >= 30
    assert checks["quantize: KL"]["value"] <= 0.02
    assert checks["quantize: perplexity ratio"]["value"] <= 1.02


def test_everything_is_on_the_accelerator(checks: dict[str, dict[str, Any]]) -> None:
    placed = [c for n, c in checks.items() if n.endswith("off the accelerator")]
    assert len(placed) == 6
    assert all(c["value"] == 0 for c in placed)


def test_the_build_needs_at_most_6_gib(bundle: Path) -> None:
    report = json.loads((bundle / "report.json").read_text())
    assert max(s["peak_rss_mib"] for s in report["stages"]) <= 6 * 1024


def test_the_emulator_agrees_at_full_depth(checks: dict[str, dict[str, Any]]) -> None:
    assert sum(n.startswith("compile: decode call") for n in checks) == 3
    assert checks["compile: decode steps through all parts, emulator against CPU"]["value"] >= 40


def test_weights_are_stored_once(bundle: Path, checks: dict[str, dict[str, Any]]) -> None:
    """Both graph names are read back from the binary that the claim is about."""
    for part in read_binaries(sorted((bundle / "device").glob("*.bin"))):
        assert len(part.graphs) == 2
        assert (part.soc_model, part.dsp_arch) == (57, 75)
        larger = max(g.const_bytes + g.shared_bytes for g in part.graphs)
        assert part.graphs[0].shared_bytes + sum(g.const_bytes for g in part.graphs) <= 1.05 * larger


def test_it_answers_in_english(bundle: Path) -> None:
    command = [sys.executable, "-m", "edgeforge", "run", str(bundle), "Why is the sky blue?", "--max-tokens", "120"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    assert "scatter" in answer.lower()
    assert "blue" in answer


def test_the_emulator_speaks_the_same_first_tokens(bundle: Path) -> None:
    """Two decode steps through all parts on HTP behind a one-token prompt: few, because each takes seconds."""
    ids = TextCodec(bundle / "tokenizer").encode("The")
    logits = {}
    for on in ("cpu", "htp"):
        with Session.open(bundle, on) as session:
            logits[on] = [session.prompt(ids[:1]), session.step(1780)]
    for a, b in zip(logits["cpu"], logits["htp"], strict=True):
        assert np.argmax(a) in np.argsort(b)[-3:]
        assert np.corrcoef(a, b)[0, 1] > 0.99
