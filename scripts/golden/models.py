"""Tiny decoders whose every weight is a formula, and their logits as HuggingFace computes them in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import formula
import numpy as np

from edgeforge.vectors.format import Expected, TensorSpec, Tolerance

FAMILIES = ("llama", "qwen3", "gemma2")
CONFIGS = Path(__file__).parents[2] / "test_vectors" / "configs"
TOKENS = 24
FLOOR_DB = 90.0
"""dB; float32 in another order of summation costs 110-130, a wrong graph is below 40"""


def config(family: str) -> dict[str, Any]:
    """The committed config.json of a family."""
    found: dict[str, Any] = json.loads((CONFIGS / f"{family}.json").read_text(encoding="utf-8"))
    return found


def weight(name: str, shape: tuple[int, ...], gain: float) -> np.ndarray:
    """A matrix: reals(name) x 2^-k, k = floor(floor(log2(columns)) / 2). A vector: gain + reals(name) / 4."""
    if len(shape) == 1:
        return np.float32(gain) + formula.reals(name, shape) / np.float32(4)
    return formula.reals(name, shape) * np.float32(2.0 ** -((shape[-1].bit_length() - 1) // 2))


def build(family: str) -> Any:
    """The float32 module with its weights filled in; tied weights are filled once."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = config(family)
    conf = AutoConfig.for_model(**raw)
    model = AutoModelForCausalLM.from_config(conf, dtype=torch.float32).eval()
    gain = 0.0 if family == "gemma2" else 1.0
    for name, parameter in model.named_parameters():
        parameter.data = torch.from_numpy(weight(name, tuple(parameter.shape), gain))
    return model


def ids(family: str) -> np.ndarray:
    """input_ids, int32 [1, 24]: no special tokens."""
    return formula.integers("input_ids", (1, TOKENS), 3, config(family)["vocab_size"] - 1).astype(np.int32)


def graphs() -> list[Any]:
    """What vectors.format.write takes: one graph a family, one call."""
    import torch

    found = []
    for family in FAMILIES:
        model = build(family).double()
        tokens = ids(family)
        with torch.no_grad():
            logits = model(torch.from_numpy(tokens).long()).logits.numpy().astype(np.float32)
        inputs = [TensorSpec(name="input_ids", dtype="int32", shape=tokens.shape)]
        outputs = [Expected(name="logits", dtype="float32", shape=logits.shape, tolerance=Tolerance(sqnr_db=FLOOR_DB))]
        found.append((family, inputs, outputs, [("prompt", {"input_ids": tokens}, {"logits": logits})]))
    return found
