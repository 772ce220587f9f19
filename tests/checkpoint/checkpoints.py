"""A tiny checkpoint to damage, and what a refusal has to be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from edgeforge.checkpoint import load_model, open_checkpoint
from edgeforge.errors import CheckpointError, EdgeForgeError

Tensors = dict[str, torch.Tensor]
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
DOWN = "model.layers.0.mlp.down_proj.weight"


def tiny(tied: bool = True) -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    return LlamaForCausalLM(
        LlamaConfig(**shape, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=tied)
    )


def edit_weights(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    file = folder / "model.safetensors"
    tensors = {n: t.clone().contiguous() for n, t in change(load_file(file)).items()}
    save_file(tensors, file, {"format": "pt"})


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def shard(folder: Path) -> list[Path]:
    """Cut the one weight file into two shards with an index."""
    whole = load_file(folder / "model.safetensors")
    names = sorted(whole)
    weight_map: dict[str, str] = {}
    for i, part in enumerate((names[:9], names[9:]), 1):
        file = f"model-0000{i}-of-00002.safetensors"
        save_file({n: whole[n] for n in part}, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return sorted(folder.glob("model-*"))


def refusal(action: Callable[[], object], kind: type[EdgeForgeError] = CheckpointError) -> EdgeForgeError:
    """The refusal of `action`; every one must say what to do."""
    with pytest.raises(kind) as caught:
        action()
    assert caught.value.hint
    return caught.value


def refused_load(folder: Path, kind: type[EdgeForgeError] = CheckpointError) -> EdgeForgeError:
    checkpoint = open_checkpoint(folder)
    return refusal(lambda: load_model(checkpoint), kind)
