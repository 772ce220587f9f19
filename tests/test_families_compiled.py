"""Other families all the way: what Llama does not have (biases, q/k norms, fused projections, softcaps) on HTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_checkpoint
from edgeforge_runtime.session import Session
from edgeforge_runtime.text import TextCodec

from edgeforge import pipeline, recipe
from edgeforge.backends.qnn.genie import genie_tokens

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
    ],
)
def test_a_family_reaches_the_accelerator_and_genie(config: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Every gate of the build holds (random weights: 25 dB), and Genie speaks our loop's tokens."""
    model = tiny_checkpoint.make(tmp_path / "model", config, **changes)
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(model=model, out=tmp_path / "out" / "bundle"))
    bundle = pipeline.build(recipe.load(path), lambda event: None)
    ids = TextCodec(bundle / "tokenizer").encode_chat([{"role": "user", "content": "Why?"}])
    with Session.open(bundle, "htp") as session:
        logits, ours = session.prompt(ids), []
        for _ in range(6):
            ours.append(int(logits.argmax()))
            logits = session.step(ours[-1])
    assert genie_tokens(bundle / "x86", ids, 6, 300) == ours
