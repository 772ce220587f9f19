"""How far a mask has to reach is measured on the model's own scores."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tiny
import torch

from edgeforge.adapt import mask
from edgeforge.errors import UnsupportedError
from edgeforge.targets import HTP, TRT

FAMILIES = ("qwen2", "gemma2", "phi", "granite")
"""grouped heads; softcapped scores; heads of their own; a scale of its own"""


@pytest.mark.parametrize("family", FAMILIES)
def test_the_models_own_attention_is_what_is_looked_at(family: str) -> None:
    """The probe's pass gives the logits of transformers' own."""
    model, ids = tiny.model(family), tiny.ids(24, 160)
    expected = tiny.hf_logits(model, ids)
    assert mask.spread(model, [ids]) >= 0
    assert tiny.sqnr_db(expected, tiny.hf_logits(model, ids)) > 100


def test_empty_slots_count() -> None:
    """Keys that only a bias makes, against the query: every allowed score is below 0, an empty slot's is 0."""
    model, ids = tiny.model("llama-bias"), tiny.ids(12, 160)
    with torch.no_grad():
        for layer in model.model.layers:
            attention = layer.self_attn
            for part in (attention.q_proj, attention.k_proj):
                part.weight.zero_()
                part.bias.zero_()
            attention.q_proj.bias[7::8] = 30.0  # the slowest rotation of each head: nearly no rotation here
            attention.k_proj.bias[7::8] = -10.0
    least = 30.0 * 10.0 / math.sqrt(8)
    assert mask.spread(model, [ids]) == pytest.approx(least, rel=0.02)


def test_the_mask_reaches_as_far_as_it_has_to() -> None:
    for above, wanted in ((0.0, -50.0), (33.9, -50.0), (34.1, -100.0), (375.6, -500.0)):
        assert mask.depth(above, HTP) == wanted
        assert mask.depth(above, TRT) == TRT.masked
    for broken in (np.nan, np.inf):
        with pytest.raises(UnsupportedError, match="attention scores are NaN or infinite"):
            mask.depth(broken, HTP)
