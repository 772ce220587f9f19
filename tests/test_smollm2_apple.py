"""The real model for Apple's chips, whole: before the second judge, and with its cache in the model, in several
packages, answering."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from builds import cli
from edgeforge_runtime.manifest import WRITE, Manifest

from edgeforge.backends.coreml.coreai import judge
from edgeforge.backends.coreml.coreai.judge import Judge

ROOT = Path(__file__).parent.parent
OUT = ROOT / "out"
SAME, HALF = 80, 45
"""dB of logits that Core AI makes against onnxruntime's: with 8-bit weights 110 and 99 came out in float32, 57 and 51
in float16"""

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def artifacts() -> tuple[Path, Path]:
    """What quantize and adapt left of the shipped recipe."""
    done = cli("build", ROOT / "recipes" / "smollm2-135m-iphone.yaml", timeout=3600)
    assert done.returncode == 0, done.stderr
    stamps = Manifest.load(OUT / "smollm2-135m-iphone").stamps
    quantized, adapted = (OUT / ".edgeforge" / s / stamps[f"stage.{s}"] for s in ("quantize", "adapt"))
    return quantized, adapted


def test_core_ai_computes_what_the_graph_does_at_full_depth(artifacts: tuple[Path, Path], tmp_path: Path) -> None:
    quantized, adapted = artifacts
    job = Judge(quantized, adapted / "reference" / "ids.npy", 64, 256, 2,
                {"float32": "whole.aimodel", "float16": "half.aimodel"})
    found = judge.ask(job, tmp_path, tmp_path / "failed", 3600)
    assert [c.value > least for c, least in zip(found, (SAME, SAME, HALF, HALF), strict=True)] == [True] * 4, found


def test_a_cache_in_the_model_and_several_packages_answer(tmp_path: Path) -> None:
    raw = yaml.safe_load((ROOT / "recipes" / "smollm2-135m-iphone-int8.yaml").read_text(encoding="utf-8"))
    raw |= {"model": str(ROOT / "models" / "smollm2-135m-instruct"), "out": str(OUT / "smollm2-135m-iphone-state"),
            "apple": {"kv": "state", "package_bytes": 64 << 20}}
    path = tmp_path / "state.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    done = cli("build", path, timeout=3600)
    assert done.returncode == 0, done.stderr
    bundle = OUT / "smollm2-135m-iphone-state"
    graph = Manifest.load(bundle).targets["ane"].graphs[0]
    assert len(graph.parts) >= 3
    assert WRITE in graph.boundary()[0]
    said = cli("run", bundle, "What is the capital of France?", "--on", "coreml-sim", "--max-tokens", "12",
               timeout=3600)
    assert "Paris" in said.stdout, said.stderr
