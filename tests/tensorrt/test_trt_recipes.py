"""The shipped recipes for GPUs, whole: real models of 135M and 0.5B parameters to one engine each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from builds import cli

pytest.importorskip("tensorrt_rtx")

ROOT = Path(__file__).parent.parent.parent
SMOLLM2 = "smollm2-135m-rtx"


def _holds(recipe: Path, bundle: Path, layers: int, most: float, tell: Callable[[str, object], None]) -> None:
    """The seconds of the builder are told; they are no gate."""
    done = cli("build", recipe, timeout=7200)
    assert done.returncode == 0, done.stderr
    report = json.loads((bundle / "report.json").read_text(encoding="utf-8"))
    checks: dict[str, dict[str, Any]] = {c["name"]: c for s in report["stages"] for c in s["checks"]}
    tell("builder seconds", checks["compile: builder"]["value"])
    tell("engine MiB", checks["compile: engine"]["value"])
    assert checks["quantize: KL"]["value"] <= most
    assert checks["compile: weights of both profiles over the model's"]["value"] <= 1.02
    for width in (128, 1):
        assert checks[f"compile: AR-{width}: attention kernels"]["value"] == layers
        for fault in ("weights unpacked before their product", "caches copied"):
            assert checks[f"compile: AR-{width}: {fault}"]["value"] == 0


@pytest.mark.slow
def test_the_recipe_on_little_text(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """SmolLM2's recipe but for the work on its weights: they round to nearest, on a search over little text."""
    raw = yaml.safe_load((ROOT / "recipes" / f"{SMOLLM2}.yaml").read_text(encoding="utf-8"))
    raw |= {"model": str(ROOT / "models" / "smollm2-135m-instruct"), "out": str(tmp_path / "bundle"),
            "calibrate": {"windows": 4, "samples": 0}}
    raw["quantize"]["quality"] = "fast"
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(raw), encoding="utf-8")
    _holds(recipe, tmp_path / "bundle", 30, 0.3, record_property)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "layers", "most"), [(SMOLLM2, 30, 0.11), ("qwen2.5-coder-0.5b-rtx", 24, 0.3)])
def test_a_recipe_is_built_whole(name: str, layers: int, most: float,
                                 record_property: Callable[[str, object], None]) -> None:
    _holds(ROOT / "recipes" / f"{name}.yaml", ROOT / "out" / name, layers, most, record_property)
