"""Real GGUF files of tiny models, by the `gguf` package's writer and llama.cpp's conventions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf import MODEL_ARCH_NAMES, GGUFWriter, get_tensor_name_map
from gguf import GGMLQuantizationType as Kind

Array = npt.NDArray[np.float32]


def write(model: Any, tokenizer: Path | None, file: Path, kind: Kind = Kind.F32, pre: str | None = "smollm",
          **metadata: Any) -> Path:
    """model as a GGUF file.

    Args:
        tokenizer: folder with a byte-level tokenizer.json; None: no tokenizer in the file.
        kind: of the matrices whose rows its blocks divide; vectors are F32 always.
        pre: name of the pre-tokenizer.
        metadata: further keys of the architecture, `__` for `.`; a value None leaves a key out.
    """
    config, arch = model.config, architecture(model.config)
    writer = GGUFWriter(file, arch)
    for key, value in (keys(config) | {k.replace("__", "."): v for k, v in metadata.items()}).items():
        if value is not None:
            _add(writer, f"{arch}.{key}", value)
    if tokenizer is not None:
        _add_tokenizer(writer, tokenizer, pre)
    for name, array in tensors(model).items():
        fits = array.ndim > 1 and array.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
        used = kind if fits else Kind.F32
        writer.add_tensor(name, gguf.quantize(array, used) if used is not Kind.F32 else array, raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def architecture(config: Any) -> str:
    return str(config.model_type.removesuffix("_text"))


def keys(config: Any) -> dict[str, Any]:
    """The keys that llama.cpp's converter writes for the config."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    found = {
        "context_length": config.max_position_embeddings, "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size, "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads, "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps, "rope.freq_base": rope["rope_theta"],
    }
    if config.model_type == "llama":
        found |= {"vocab_size": config.vocab_size, "rope.dimension_count": head}
    if config.model_type in ("qwen3", "gemma2", "gemma3_text"):
        found |= {"attention.key_length": head, "attention.value_length": head}
    if config.model_type == "phi3":
        partial = config.rope_parameters.get("partial_rotary_factor", 1.0)
        found |= {"rope.dimension_count": int(head * partial), "rope.scaling.original_context_length": 4096,
                  "attention.sliding_window": config.sliding_window or 0}
    if config.model_type == "gemma3_text":
        found["attention.sliding_window"] = config.sliding_window
    if config.model_type == "gemma2":
        found |= {"attention.sliding_window": config.sliding_window,
                  "attn_logit_softcapping": config.attn_logit_softcapping,
                  "final_logit_softcapping": config.final_logit_softcapping}
    return found


def tensors(model: Any) -> dict[str, Array]:
    """Weights under GGUF's names, in its layout: llama's rotary rows interleaved, gemma's gains with their one."""
    arch = next(a for a, name in MODEL_ARCH_NAMES.items() if name == architecture(model.config))
    names, found = get_tensor_name_map(arch, model.config.num_hidden_layers), {}
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    for path, value in model.state_dict().items():
        if tied and path == "lm_head.weight":
            continue
        module, _, suffix = path.rpartition(".")
        array = value.detach().to(torch.float32).numpy()
        if model.config.model_type == "llama" and module.endswith(("q_proj", "k_proj")):
            heads = model.config.num_attention_heads if "q_proj" in module else model.config.num_key_value_heads
            array = _interleave(array, heads)
        if model.config.model_type in ("gemma2", "gemma3_text") and "norm" in module:
            array = array + 1
        found[f"{names.get_name(module)}.{suffix}"] = np.ascontiguousarray(array)
    return found


def dequantized(file: Path) -> dict[str, Array]:
    """Every tensor of a file as llama.cpp's formulas give it."""
    return {t.name: gguf.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(file).tensors}


def _interleave(array: Array, heads: int) -> Array:
    """convert_hf_to_gguf.py: the halves of a head become even and odd rows."""
    split = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return split.swapaxes(1, 2).reshape(array.shape)


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
           list: writer.add_array}[type(value)]
    add(key, value)


def _add_tokenizer(writer: GGUFWriter, folder: Path, pre: str | None) -> None:
    raw = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    special = {t["id"]: t["content"] for t in raw["added_tokens"]}
    ordered = {number: token for token, number in raw["model"]["vocab"].items()} | special
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list([ordered[i] for i in range(len(ordered))])
    writer.add_token_types([3 if i in special else 1 for i in range(len(ordered))])
    writer.add_token_merges([" ".join(pair) for pair in raw["model"]["merges"]])
    by_text = {token: number for number, token in special.items()}
    writer.add_eos_token_id(by_text[settings["eos_token"]])
    writer.add_pad_token_id(by_text[settings["pad_token"]])
    writer.add_chat_template((folder / "chat_template.jinja").read_text(encoding="utf-8"))
