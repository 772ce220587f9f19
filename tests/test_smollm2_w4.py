"""The product with 4-bit weights in blocks of 64: the shipped recipe, whole, through Qualcomm's compiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builds import cli

ROOT = Path(__file__).parent.parent
RECIPE, BUNDLE = ROOT / "recipes" / "smollm2-135m-w4-qnn.yaml", ROOT / "out" / "smollm2-135m-w4-qnn"
LINEARS, QUERIES, KEYS, LAYERS = 7, 9, 3, 30
"""a layer's products (q, k, v, o, gate, up, down), its heads of queries and of keys and values; layers"""

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def checks() -> dict[str, dict[str, Any]]:
    """Of the report of a build (or a finished one) that ended well."""
    done = cli("build", RECIPE, timeout=3600)
    assert done.returncode == 0, done.stderr
    report = json.loads((BUNDLE / "report.json").read_text(encoding="utf-8"))
    return {c["name"]: c for s in report["stages"] for c in s["checks"]}


def test_the_quantized_model_holds_the_targets(checks: dict[str, dict[str, Any]]) -> None:
    """Those of the study for `balanced`, on text of calibration's kinds; the gates are wider."""
    assert checks["quantize: weights in blocks of 64"]["value"] == LINEARS * LAYERS
    assert checks["quantize: stored"]["value"] < 5
    assert checks["quantize: KL"]["value"] <= 0.11
    assert checks["quantize: perplexity ratio"]["value"] <= 1.09


def test_every_block_was_compiled_as_one(checks: dict[str, dict[str, Any]]) -> None:
    """Each head's projection is a weight of its own there."""
    found = [c["value"] for n, c in checks.items() if n.endswith("BLOCKWISE_EXPANSION")]
    assert found == 2 * [LAYERS * (LINEARS - 3 + QUERIES + 2 * KEYS)]
    assert all(c["value"] == 0 for n, c in checks.items() if n.endswith("off the accelerator"))


def test_the_emulator_agrees_at_full_depth(checks: dict[str, dict[str, Any]]) -> None:
    assert checks["compile: decode steps through all parts, emulator against CPU"]["value"] >= 40
