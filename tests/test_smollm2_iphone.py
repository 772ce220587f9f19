"""The product for an iPhone: the shipped recipes, whole, 4-bit weights as entries of tables, and 8-bit ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builds import cli

from edgeforge.backends.coreml.package import WEIGHTS

ROOT = Path(__file__).parent.parent
LINEARS, LAYERS = 7, 30
_MIB = 2**20

pytestmark = pytest.mark.nightly


def _built(name: str) -> dict[str, dict[str, Any]]:
    """The checks of the report of a build (or a finished one) that ended well."""
    done = cli("build", ROOT / "recipes" / f"{name}.yaml", timeout=3600)
    assert done.returncode == 0, done.stderr
    report = json.loads((ROOT / "out" / name / "report.json").read_text(encoding="utf-8"))
    return {c["name"]: c for s in report["stages"] for c in s["checks"]}


@pytest.fixture(scope="module")
def tables() -> dict[str, dict[str, Any]]:
    return _built("smollm2-135m-iphone")


def test_tables_hold_the_targets(tables: dict[str, dict[str, Any]]) -> None:
    assert tables["quantize: weights with a table for 16 outputs"]["value"] == LINEARS * LAYERS + 1
    assert tables["quantize: KL"]["value"] <= 0.3
    assert tables["quantize: perplexity ratio"]["value"] <= 1.25


def test_the_package_holds_one_set_of_weights(tables: dict[str, dict[str, Any]]) -> None:
    weights = ROOT / "out" / "smollm2-135m-iphone" / "device" / "model.mlpackage" / WEIGHTS
    assert tables["compile: weights of both functions over the larger one's"]["value"] <= 1.03
    assert 125 * _MIB < weights.stat().st_size < 135 * _MIB, "half of it the float16 embedding"


@pytest.mark.parametrize("name", ["smollm2-135m-iphone", "smollm2-135m-iphone-int8"])
def test_the_package_computes_what_the_graph_does_at_full_depth(name: str) -> None:
    checks = _built(name)
    for function in ("prefill", "decode"):
        for rounding, least in (("float32", 50), ("float16", 45)):
            assert checks[f"compile: {function} of the package in {rounding} against the float graph"]["value"] >= least
    assert checks["compile: known to leave the Neural Engine"]["value"] == 0


def test_eight_bits_are_nearly_the_float_model() -> None:
    checks = _built("smollm2-135m-iphone-int8")
    assert checks["quantize: KL"]["value"] <= 0.02
