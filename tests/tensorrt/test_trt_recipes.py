"""The shipped recipes for GPUs, whole: real models of 135M and 0.5B parameters to one engine each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builds import cli

pytest.importorskip("tensorrt_rtx")
pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(("name", "layers", "most"), [("smollm2-135m-rtx", 30, 0.11),
                                                      ("qwen2.5-coder-0.5b-rtx", 24, 0.3)])
def test_a_recipe_is_built_whole(name: str, layers: int, most: float,
                                 record_property: Callable[[str, object], None]) -> None:
    """The seconds of the builder stand in the bundle's report; they are no gate."""
    done = cli("build", ROOT / "recipes" / f"{name}.yaml", timeout=7200)
    assert done.returncode == 0, done.stderr
    report = json.loads((ROOT / "out" / name / "report.json").read_text(encoding="utf-8"))
    checks: dict[str, dict[str, Any]] = {c["name"]: c for s in report["stages"] for c in s["checks"]}
    record_property("builder seconds", checks["compile: builder"]["value"])
    record_property("engine MiB", checks["compile: engine"]["value"])
    assert checks["quantize: KL"]["value"] <= most
    assert checks["compile: weights of both profiles over the model's"]["value"] <= 1.02
    for width in (128, 1):
        assert checks[f"compile: AR-{width}: attention kernels"]["value"] == layers
        for fault in ("weights unpacked before their product", "caches copied"):
            assert checks[f"compile: AR-{width}: {fault}"]["value"] == 0
