"""RoPE tables against float64 truth, near and far (a table made in float16 is off by 0.78 at 2048 positions)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from edgeforge_runtime.manifest import COS, SIN, SWA_COS, SWA_SIN
from transformers import Gemma3TextConfig, LlamaConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from edgeforge.adapt import rope, shape
from edgeforge.targets import HTP

Array = np.ndarray[Any, np.dtype[np.float64]]


class _Model(torch.nn.Module):
    """As much of a model as the tables need."""

    def __init__(self, **parameters: Any) -> None:
        super().__init__()
        self.model = torch.nn.Module()
        config = LlamaConfig(hidden_size=128, num_attention_heads=4, max_position_embeddings=32768,
                             rope_parameters={"rope_theta": 10000.0, "rope_type": "default", **parameters})
        self.config = config
        self.model.rotary_emb = LlamaRotaryEmbedding(config)


def _angles(frequencies: Array, context: int) -> Array:
    return np.outer(np.arange(context, dtype=np.float64), frequencies)


def _frequencies(theta: float = 1e4, width: int = 32) -> Array:
    return theta ** (-np.arange(0, width, 2, dtype=np.float64) / width)


@pytest.mark.parametrize("context", [2048, 32768])
def test_default_rope_to_its_last_position(context: int) -> None:
    cos, sin = rope.tables(_Model(), context).values()
    angles = _angles(_frequencies(), context)
    assert cos.shape == sin.shape == (context, 16)
    assert cos.dtype == np.float32
    # What is left is the module's own float32 frequencies: half an ulp x position.
    assert max(np.abs(cos - np.cos(angles)).max(), np.abs(sin - np.sin(angles)).max()) < 5e-4
    exact = _angles(_Model().model.rotary_emb.inv_freq.double().numpy(), context)
    assert max(np.abs(cos - np.cos(exact)).max(), np.abs(sin - np.sin(exact)).max()) < 5e-7


def test_each_layer_type_has_its_table_to_the_last_position() -> None:
    """Gemma 3: theta 1e4 where attention slides, 1e6 where it is full; 8192 positions in, a wrong one is noise."""
    model = _Model()
    model.config = Gemma3TextConfig(head_dim=32, num_hidden_layers=6, max_position_embeddings=8192)
    model.model.rotary_emb = Gemma3RotaryEmbedding(model.config)
    made = rope.tables(model, 8192)
    assert list(made) == [COS, SIN, SWA_COS, SWA_SIN]
    for names, theta in (((COS, SIN), 1e6), ((SWA_COS, SWA_SIN), 1e4)):
        angles = _angles(_frequencies(theta), 8192)
        for name, wave in zip(names, (np.cos, np.sin), strict=True):
            assert np.abs(made[name] - wave(angles)).max() < 5e-4
    assert np.abs(made[COS] - made[SWA_COS])[4096:].max() > 1.9


def test_an_amplitude_is_its_own_tables() -> None:
    """Olmo 3 stretches the positions of full attention alone."""
    made = rope.tables(tiny.model("olmo3"), 64)
    np.testing.assert_allclose(np.hypot(made[COS], made[SIN]), 0.1 * math.log(4.0) + 1, rtol=1e-6)
    np.testing.assert_allclose(np.hypot(made[SWA_COS], made[SWA_SIN]), 1, rtol=1e-6)


@pytest.mark.parametrize(("layers", "theta"), [("sliding_attention", 100.0), ("full_attention", 10000.0)])
def test_layers_of_one_type_take_the_plain_names(layers: str, theta: float) -> None:
    model: Any = tiny.model("gemma3", layer_types=[layers] * 3)
    decoder = shape.decoder(model.config, HTP, 16)
    made = rope.tables(model, 16)
    assert list(made) == decoder.rotary_names() == [COS, SIN]
    np.testing.assert_allclose(made[COS], np.cos(_angles(_frequencies(theta, 16), 16)), atol=1e-6)


def test_llama3_scaling_comes_along() -> None:
    parameters = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 512}
    cos, sin = rope.tables(_Model(**parameters), 2048).values()
    scaled = []
    for frequency in _frequencies():
        turns = 512 * frequency / (2 * math.pi)
        smooth = min(max((turns - 1.0) / (4.0 - 1.0), 0.0), 1.0)
        scaled.append((1 - smooth) * frequency / 8.0 + smooth * frequency)
    angles = _angles(np.array(scaled), 2048)
    assert np.abs(cos - np.cos(angles)).max() < 5e-4
    assert np.abs(sin - np.sin(angles)).max() < 5e-4
    assert np.abs(cos - np.cos(_angles(_frequencies(), 2048))).max() > 1


def test_yarns_amplitude_comes_along() -> None:
    model = _Model(rope_type="yarn", factor=4.0, original_max_position_embeddings=8192)
    cos, sin = rope.tables(model, 64).values()
    amplitude = 0.1 * math.log(4.0) + 1
    np.testing.assert_allclose(np.hypot(cos, sin), amplitude, rtol=1e-6)


@pytest.mark.parametrize("family", ["phi3-partial", "llama-wide-heads", "smollm3"])
def test_width_follows_the_rotated_part_of_the_head(family: str) -> None:
    model: Any = tiny.model(family)
    decoder = shape.decoder(model.config, HTP, 8)
    assert rope.tables(model, 8)[COS].shape == (8, decoder.rotary // 2)


def test_a_half_precision_module_does_not_pass_for_the_truth() -> None:
    model = _Model()
    model.model.rotary_emb.half()
    with pytest.raises(rope.UnsupportedError, match="no float32 frequencies"):
        rope.tables(model, 2048)
