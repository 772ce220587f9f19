"""Every key of a config is read by the model's code, or says nothing, or is an error (pain point 12)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from checkpoints import edit_config, refusal, refused_load

from edgeforge.checkpoint import Checkpoint, check_config, load_model, open_checkpoint

_SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "vocab_size": 160}
# Keys and values as published, but for the sizes above; what every one of them has, once.
_COMMON = {"attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02, "rms_norm_eps": 1e-05,
           "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0", "use_cache": True, "bos_token_id": 1,
           "eos_token_id": 2}
PUBLISHED: dict[str, dict[str, Any]] = {
    "SmolLM2-135M-Instruct": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "attention_bias": False, "is_llama_config": True,
        "initializer_range": 0.041666666666666664, "max_position_embeddings": 8192, "mlp_bias": False,
        "pad_token_id": 2, "pretraining_tp": 1, "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000,
        "tie_word_embeddings": True, "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}},
    "Llama-3.2-1B": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "attention_bias": False, "head_dim": 64,
        "eos_token_id": [128001, 128008, 128009], "max_position_embeddings": 131072, "mlp_bias": False,
        "pretraining_tp": 1, "rope_theta": 500000.0, "tie_word_embeddings": True, "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"}},
    "Llama-3.2-1B, saved by unsloth": {
        "model_type": "llama", "unsloth_fixed": True, "unsloth_version": "2024.9", "rope_theta": 500000.0,
        "max_position_embeddings": 131072, "tie_word_embeddings": True},
    "Qwen2.5-0.5B": {
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "max_position_embeddings": 32768,
        "max_window_layers": 24, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True,
        "use_mrope": False, "use_sliding_window": False},
    "Qwen3-0.6B": {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 128,
        "max_position_embeddings": 40960, "max_window_layers": 28, "rope_scaling": None, "rope_theta": 1000000,
        "sliding_window": None, "tie_word_embeddings": True, "use_sliding_window": False},
    "gemma-2-2b": {
        "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "attention_bias": False,
        "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid", "final_logit_softcapping": 30.0,
        "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rope_theta": 10000.0,
        "sliding_window": 4096},
    "gemma-3-270m": {
        "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "_sliding_window_pattern": 6,
        "attention_bias": False, "attn_logit_softcapping": None, "final_logit_softcapping": None, "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh", "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": 32768, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rope_scaling": None,
        "rope_local_base_freq": 10000.0, "rope_theta": 1000000.0, "sliding_window": 512,
        "use_bidirectional_attention": False},
    "Phi-3-mini-4k-instruct": {
        "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "_name_or_path": "Phi-3-mini-4k-instruct",
        "attention_bias": False, "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "embd_pdrop": 0.0,
        "max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "pad_token_id": 0,
        "resid_pdrop": 0.0, "rope_scaling": None, "rope_theta": 10000.0, "sliding_window": 2047,
        "tie_word_embeddings": False},
    "Phi-3.5-mini-instruct": {
        "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "embd_pdrop": 0.0,
        "max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "pad_token_id": 0,
        "resid_pdrop": 0.0, "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": False,
        "rope_scaling": {"type": "longrope", "long_factor": [1.08, 1.11, 1.14, 1.34],
                         "short_factor": [1.0, 1.02, 1.03, 1.03]}},
    "Mistral-7B-v0.1": {
        "model_type": "mistral", "architectures": ["MistralForCausalLM"], "max_position_embeddings": 32768,
        "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False},
    "granite-3.1-2b": {
        "model_type": "granite", "architectures": ["GraniteForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.1, "attention_multiplier": 0.015625, "embedding_multiplier": 12.0, "logits_scaling": 8.0,
        "max_position_embeddings": 131072, "mlp_bias": False, "pad_token_id": 0, "residual_multiplier": 0.22,
        "rope_scaling": None, "rope_theta": 5000000.0, "tie_word_embeddings": True},
    "SmolLM3-3B": {
        "model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False,
        "bos_token_id": None, "layer_types": ["full_attention"] * 2, "max_position_embeddings": 65536,
        "max_window_layers": 28, "mlp_bias": False, "no_rope_layer_interval": 4, "no_rope_layers": [1, 0],
        "pad_token_id": 4, "pretraining_tp": 2, "rope_scaling": None, "rope_theta": 5000000.0,
        "sliding_window": None, "tie_word_embeddings": True, "use_sliding_window": False},
    "OLMo-2-0425-1B": {
        "model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"], "attention_bias": False,
        "max_position_embeddings": 4096, "pad_token_id": 7, "rope_scaling": None, "rope_theta": 500000,
        "tie_word_embeddings": False},
}
LLAMA = {"model_type": "llama"} | _SIZES | _COMMON


def opened(config: dict[str, Any]) -> Checkpoint:
    """A checkpoint of which the config alone counts."""
    return Checkpoint(Path("/models/x"), config, (), {}, (), "safetensors", "x", "/models/x")


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_is_accepted(name: str) -> None:
    check_config(opened(_COMMON | PUBLISHED[name] | _SIZES))


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("brief", [True, False])
def test_what_transformers_saves_is_accepted(family: str, brief: bool) -> None:
    check_config(opened(json.loads(tiny.config(family).to_json_string(use_diff=brief))))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sliding_window_pattern", 4),
        ("sliding_window", 16),  # a Llama has none; transformers would attend to everything
        ("attn_logit_softcapping", 50.0),
        ("rope_theta_global", 1000000.0),
        ("rope_interleaved", True),
        ("qk_layernorm", True),
        ("embedding_multiplier", 12.0),
        ("dual_chunk_attention_config", {"chunk_size": 262144}),
        ("transformers_weights", "../other.safetensors"),  # transformers would load this file instead
        ("fusion_config", {"patch": True}),
    ],
)
def test_a_key_that_nothing_reads_is_named_with_its_value(key: str, value: object) -> None:
    error = refusal(lambda: check_config(opened(LLAMA | {key: value})))
    assert f"{key}: {value}" in error.message
    assert "Llama" in error.message
    assert "config.json" in error.hint


@pytest.mark.parametrize("value", [None, False, [], {}, ""])
def test_a_foreign_key_that_is_switched_off_says_nothing(value: object) -> None:
    check_config(opened(LLAMA | {"attn_logit_softcapping": value}))


def test_a_key_of_rope_that_its_type_does_not_read() -> None:
    rope = {"rope_type": "linear", "factor": 2.0, "beta_fast": 32}
    assert "beta_fast: 32" in refusal(lambda: check_config(opened(LLAMA | {"rope_scaling": rope}))).message


@pytest.mark.parametrize(("layers", "parameters", "named"), [
    ("full_attention", {"rope_type": "linear", "factor": 2.0, "beta_fast": 32}, "full_attention.beta_fast: 32"),
    ("sliding_attention", {"rope_type": "default", "factor": 8.0}, "sliding_attention.factor: 8.0")])
def test_a_key_of_one_layer_types_rope_that_its_type_does_not_read(
        layers: str, parameters: dict[str, Any], named: str) -> None:
    config = json.loads(tiny.config("gemma3").to_json_string())
    check_config(opened(config))
    config["rope_parameters"][layers] = parameters | {"rope_theta": 10000.0}
    assert f"rope_parameters.{named}" in refusal(lambda: check_config(opened(config))).message


def test_a_second_theta_that_nothing_reads() -> None:
    """Both ways of spelling it at once, and they differ."""
    config = json.loads(tiny.config("gemma3").to_json_string()) | {"rope_local_base_freq": 5000.0}
    assert "rope_local_base_freq: 5000.0" in refusal(lambda: check_config(opened(config))).message


def test_gemma_with_two_activations_that_differ() -> None:
    config = _COMMON | PUBLISHED["gemma-2-2b"] | _SIZES | {"hidden_act": "relu"}
    assert "hidden_act: relu" in refusal(lambda: check_config(opened(config))).message


def test_loading_refuses_before_it_reads_weights(folder: Path) -> None:
    edit_config(folder, sliding_window=16)
    checkpoint = open_checkpoint(folder)
    (folder / "model.safetensors").unlink()
    assert "sliding_window: 16" in refusal(lambda: load_model(checkpoint)).message


def test_a_vocabulary_of_absurd_size_is_refused_without_memory_for_it(folder: Path) -> None:
    edit_config(folder, vocab_size=10**12)
    assert "model.embed_tokens.weight is [64, 32]" in refused_load(folder).message


def test_reads_are_noted_only_while_checking() -> None:
    from transformers import PreTrainedConfig

    before = PreTrainedConfig.__getattribute__
    check_config(opened(LLAMA))
    with pytest.raises(Exception, match="makes no model"):
        check_config(opened(LLAMA | {"num_attention_heads": 5}))
    assert PreTrainedConfig.__getattribute__ is before
