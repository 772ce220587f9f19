"""A GGUF file: config, tokenizer and weights in one.

Its config is made here from the file's own keys, of which none may be left over: transformers drops what its
table lacks (head sizes, windows, biases, RoPE scaling) without a word. Its weights transformers dequantizes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from edgeforge.checkpoint import gguf_header
from edgeforge.checkpoint.files import check_regular
from edgeforge.checkpoint.gguf_names import module_path
from edgeforge.checkpoint.headers import refuse_pointer
from edgeforge.checkpoint.opened import Checkpoint, TensorInfo
from edgeforge.checkpoint.words import names
from edgeforge.errors import CheckpointError, UnsupportedError

ARCHITECTURES = {"gemma2": "gemma2", "gemma3": "gemma3_text", "llama": "llama", "phi3": "phi3", "qwen2": "qwen2",
                 "qwen3": "qwen3"}
"""GGUF architectures and their model_type; each is tested against the same weights in a HuggingFace folder"""
# https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, "LLM": key below the architecture's -> config.json's
_KEYS = {
    "context_length": "max_position_embeddings", "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size", "vocab_size": "vocab_size",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps", "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window", "rope.freq_base": "rope_theta",
    "attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping",
}
_IDS = {"tokenizer.ggml.bos_token_id": "bos_token_id", "tokenizer.ggml.eos_token_id": "eos_token_id",
        "tokenizer.ggml.padding_token_id": "pad_token_id"}
# Present and saying nothing: these keys with these values.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "rope.scaling.type": ("none",), "rope.scaling.factor": (0.0, 1.0), "rope.scaling.attn_factor": (1.0,),
    "rope.scale_linear": (1.0,), "attention.causal": (True,), "expert_count": (0,), "expert_used_count": (0,),
    "attention.sliding_window": (0,), "tensor_data_layout": ("Meta AI original pth",),
}
_SCALING_ONLY = {"rope.scaling.original_context_length", "rope.scaling.finetuned"}  # nothing without a type
_DERIVED = {"attention.value_length", "rope.dimension_count"}
_NEEDED = ("context_length", "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
           "attention.layer_norm_rms_epsilon")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_FOLDER_HINT = "give the HuggingFace folder that the file was made of"
_GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
_THETA = 10000.0
"""llama.cpp's, where a file states none; for Gemma 3's sliding layers none does"""


def open_gguf(file: Path) -> Checkpoint:
    """Reads a file's header; checks that every tensor lies inside the file.

    Raises:
        CheckpointError: no whole GGUF file, or keys or tensors in it that nothing here reads.
        UnsupportedError: one of several files, an architecture or a tensor type that is not read.
    """
    check_regular(file, file.resolve().parent)
    refuse_pointer(file)
    if shard := _SHARD.search(file.name):
        raise UnsupportedError(f"{file} is part {int(shard[1])} of {int(shard[2])}; EdgeForge reads whole GGUF files",
                               "join them: `llama-gguf-split --merge FIRST_PART WHOLE.gguf`")
    header = gguf_header.read(file)
    architecture = header.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedError(f"{file} has the architecture {architecture!r}; read are {', '.join(ARCHITECTURES)}",
                               _FOLDER_HINT)
    tensors = _tensors(file, header)
    config = _config(file, architecture, header.metadata, tensors)
    if unknown := [n for n in tensors if module_path(architecture, n) is None]:
        raise CheckpointError(f"{file} has tensors that no {architecture} has: {names(unknown)}", _FOLDER_HINT)
    tensors = {str(module_path(architecture, n)): info for n, info in tensors.items()}
    return Checkpoint(file.parent, config, (file,), tensors, (), "gguf", file.stem, str(file),
                      metadata=header.metadata)


def _tensors(file: Path, header: gguf_header.Header) -> dict[str, TensorInfo]:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    size, end, found = file.stat().st_size, 0, dict[str, TensorInfo]()
    for tensor in sorted(header.tensors, key=lambda t: t.offset):
        try:
            kind = GGMLQuantizationType(tensor.kind)
        except ValueError:
            raise UnsupportedError(f"{file}: {tensor.name} has the unknown type {tensor.kind}", _FOLDER_HINT) from None
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if not tensor.dims or tensor.dims[0] % block:
            raise CheckpointError(f"{file}: {tensor.name} has dimensions {list(tensor.dims)}, and {kind.name} comes in "
                                  f"blocks of {block}", "download it again")
        if tensor.name in found or tensor.offset < end:
            raise CheckpointError(f"{file}: {tensor.name} is there twice, or lies on another tensor",
                                  "download it again")
        end = tensor.offset + prod(tensor.dims) // block * block_bytes
        if header.data + end > size:
            raise CheckpointError(
                f"{file} ({size} bytes) is truncated: {tensor.name} ends at byte {header.data + end}, "
                f"{header.data + end - size} bytes are missing", "download it again")
        found[tensor.name] = TensorInfo(tensor.dims[::-1], kind.name, file)
    if not found:
        raise CheckpointError(f"{file} has no tensors: it is a vocabulary alone", "give a file with weights")
    if scaled := [n for n in found if n.startswith(("rope_freqs", "rope_factors"))]:
        raise UnsupportedError(f"{file} carries its RoPE scaling as a tensor ({names(scaled)}), which is not read",
                               _FOLDER_HINT)
    return found


def _config(file: Path, architecture: str, metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
            ) -> dict[str, Any]:
    """config.json as it would be, of every key that the file has for its architecture."""
    own = {k.removeprefix(f"{architecture}."): v for k, v in metadata.items() if k.startswith(f"{architecture}.")}
    if missing := [f"{architecture}.{k}" for k in _NEEDED if k not in own]:
        raise CheckpointError(f"{file} lacks {names(missing)}", "convert the model again with a current llama.cpp")
    own = {k: v for k, v in own.items() if v not in _NEUTRAL.get(k, ())}
    if "rope.scaling.type" not in own:
        own = {k: v for k, v in own.items() if k not in _SCALING_ONLY}
    if unread := [f"{architecture}.{k}: {v}" for k, v in own.items() if k not in _KEYS and k not in _DERIVED]:
        raise UnsupportedError(f"{file} has keys that EdgeForge does not read: {names(unread)}", _FOLDER_HINT)
    config = {"model_type": ARCHITECTURES[architecture]} | {_KEYS[k]: v for k, v in own.items() if k in _KEYS}
    config |= {name: metadata.get(key) for key, name in _IDS.items()}
    config.setdefault("vocab_size", metadata.get("tokenizer.ggml.tokens"))
    config["tie_word_embeddings"] = "output.weight" not in tensors
    _add_head_sizes(file, architecture, own, config)
    if config["num_hidden_layers"] > len(tensors):
        raise CheckpointError(f"{file} says block_count {config['num_hidden_layers']} and has {len(tensors)} tensors",
                              "download it again")
    if architecture == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
    if architecture == "gemma3":
        config["rope_parameters"] = {
            "full_attention": {"rope_type": "default", "rope_theta": config.pop("rope_theta", _THETA)},
            "sliding_attention": {"rope_type": "default", "rope_theta": _THETA}}
    if architecture in _GEMMA_27B_LAYERS:  # llama.cpp, too, knows the 27B by its depth
        whole = config["num_hidden_layers"] == _GEMMA_27B_LAYERS[architecture]
        config["query_pre_attn_scalar"] = (
            config["hidden_size"] // config["num_attention_heads"] if whole else config["head_dim"])
    return config


def _add_head_sizes(file: Path, architecture: str, own: Mapping[str, Any], config: dict[str, Any]) -> None:
    for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers"):
        if not isinstance(value := config.get(key, 1), int) or value < 1:
            raise UnsupportedError(f"{file} has {key} {value!r}; one positive number is read", _FOLDER_HINT)
    rotary = own.get("rope.dimension_count")
    whole = rotary if architecture == "llama" else None  # a Llama's heads turn whole; older files say no more
    size = own.get("attention.key_length") or whole or config["hidden_size"] // config["num_attention_heads"]
    if own.get("attention.value_length", size) != size:
        raise UnsupportedError(f"{file} has heads of {size} for keys and {own['attention.value_length']} for values",
                               _FOLDER_HINT)
    if architecture == "phi3":
        config.pop("head_dim", None)
        config["partial_rotary_factor"] = (rotary or size) / size
        return
    config["head_dim"] = size
    if rotary is not None and rotary != size:
        raise UnsupportedError(f"{file} turns {rotary} of {size} channels of a head (rope.dimension_count)",
                               _FOLDER_HINT)
