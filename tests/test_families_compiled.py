"""Other families all the way: what Llama does not have (biases, q/k norms, fused projections, softcaps) on HTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_checkpoint
from edgeforge_runtime import rope
from edgeforge_runtime.codes import encode
from edgeforge_runtime.manifest import Manifest
from edgeforge_runtime.session import Session
from edgeforge_runtime.text import TextCodec

from edgeforge import pipeline, recipe
from edgeforge.backends.qnn.genie import CONFIG, genie_tokens

PREFILL = 32
RECIPE = """\
model: {model}
out: {out}
target: {{chip: snapdragon-8-gen-3, context: 128, prefill: 32}}
calibrate: {{windows: 8, tokens: 64}}
gates: {{quantize_db: 25}}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "changes"),
    [
        ("Qwen2Config", {}),
        ("Qwen3Config", {"head_dim": 32}),
        ("Phi3Config", {}),
        ("Gemma2Config", {"head_dim": 32}),
        ("Gemma3TextConfig", {"head_dim": 32, "layer_types": ["sliding_attention", "full_attention"]}),
    ],
)
def test_a_family_reaches_the_accelerator_and_genie(config: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Every gate of the build holds (random weights: 25 dB), and Genie speaks our loop's tokens, by our RoPE tables."""
    model = tiny_checkpoint.make(tmp_path / "model", config, **changes)
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(model=model, out=tmp_path / "out" / "bundle"))
    bundle = pipeline.build(recipe.load(path), lambda event: None)
    ids = TextCodec(bundle / "tokenizer").encode_chat([{"role": "user", "content": "Why? " * 8}])
    assert len(ids) > PREFILL
    with Session.open(bundle, "htp") as session:
        logits, ours = session.prompt(ids), []
        for _ in range(6):
            ours.append(int(logits.argmax()))
            logits = session.step(ours[-1])
    _dump_inputs(bundle / "x86" / CONFIG)
    assert genie_tokens(bundle / "x86", ids, 6, 300) == ours
    (graph,) = (g for g in Manifest.load(bundle).targets["htp"].graphs if g.ar == PREFILL)
    tables = rope.needed([graph], rope.read(bundle / "rope.npz"))
    assert len(tables) == (4 if config == "Gemma3TextConfig" else 2)
    for name, table in tables.items():
        # Genie computes its tables in float32.
        (file,) = (bundle / "x86").rglob(f"prompt_*/000_in_{name}")
        codes = encode(graph.boundary()[0][name], table[:PREFILL], np.floor)
        found = np.fromfile(file, np.uint16).reshape(codes.shape)
        assert np.abs(found.astype(int) - codes).max() <= 2, name


def _dump_inputs(path: Path) -> None:
    config = json.loads(path.read_text())
    config["dialog"]["debug"] = {"path": "dump", "dump-tensors": True}
    path.write_text(json.dumps(config))
