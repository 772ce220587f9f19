"""What adapt does not do it refuses by name: never a graph that silently computes something else."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
import torch
import transformers

from edgeforge.adapt import attention, export, rope, shape
from edgeforge.adapt.decoder import DecoderGraph
from edgeforge.errors import UnsupportedError
from edgeforge.targets import HTP


def _config(name: str, **changes: Any) -> Any:
    return getattr(transformers, name)(**tiny._BASE | changes)


def _two_ropes(**changes: Any) -> Any:
    """Gemma 3 with another table for full attention."""
    made = tiny.config("gemma3")
    made.rope_parameters = {**made.rope_parameters, "full_attention": made.rope_parameters["full_attention"] | changes}
    return made


def _without(layers: str) -> Any:
    made = tiny.config("gemma3")
    made.rope_parameters = {**made.rope_parameters, layers: None}
    return made


@pytest.mark.parametrize(("config", "context", "named"), [
    (lambda: _config("MistralConfig", sliding_window=16), 17,
     "sliding attention over 16 tokens, and the context is 17"),
    (lambda: _config("Gemma2Config", sliding_window=16), 17, "sliding attention over 16"),
    (lambda: _config("Qwen2Config", use_sliding_window=True, sliding_window=16, max_window_layers=0), 17, "over 16"),
    (lambda: tiny.config("gemma3", sliding_window=16), 17, "sliding attention over 16 tokens, and the context is 17"),
    (lambda: _two_ropes(partial_rotary_factor=0.5), 16, "layers of 2 types rotate [0.5, 1.0] of a head"),
    (lambda: _two_ropes(rope_theta=0), 16, "rope_theta: 0 for layers of type full_attention"),
    (lambda: _without("full_attention"), 16, "no rope_parameters for layers of type full_attention"),
    (lambda: _config("Qwen3_5TextConfig", layer_types=["linear_attention", "full_attention"]), 16, "linear_attention"),
    (lambda: _config("Lfm2Config", layer_types=["conv", "full_attention"]), 16, "layers of type conv"),
    (lambda: _config("Qwen3MoeConfig"), 16, "a mixture of 128 experts"),
    (lambda: _config("MixtralConfig"), 16, "a mixture of 8 experts"),
    (lambda: _config("GPT2Config"), 16, "gpt2: config has no rope_parameters"),
    (lambda: transformers.ViTConfig(num_attention_heads=2), 16, "vit: config has no rope_parameters"),
    (lambda: transformers.ResNetConfig(), 16, "resnet: config has no num_attention_heads"),
])
def test_the_config_alone_is_enough_to_refuse(config: Any, context: int, named: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        shape.decoder(config(), HTP, context)
    assert named in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(("key", "value", "hint"), [
    ("num_attention_heads", "4", "a whole number above 0"), ("num_attention_heads", 0, "a whole number above 0"),
    ("hidden_size", 64.5, "a whole number above 0"), ("head_dim", True, "a whole number above 0"),
    ("rms_norm_eps", -1.0, "0 or a number above it"), ("rms_norm_eps", "tiny", "0 or a number above it"),
    ("rope_theta", 0, "a number above 0"), ("rope_theta", -10000.0, "a number above 0"),
    ("rope_theta", math.nan, "a number above 0"), ("partial_rotary_factor", "half", "a number above 0, up to 1"),
    ("partial_rotary_factor", 1.5, "a number above 0, up to 1")])
def test_a_number_that_cannot_be_is_named(key: str, value: object, hint: str) -> None:
    """They were called absent, or a model that reads positions, or gave NaN at the first gate."""
    raw = tiny._BASE | {"model_type": "llama", "rms_norm_eps": 1e-6, "rope_theta": 10000.0} | {key: value}
    with pytest.raises(UnsupportedError) as caught:
        shape.decoder(shape.as_config(raw), HTP, 64)
    assert f"llama: config has {key}: {value!r}" == caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("spelled", [
    {"rope_theta": 1e6, "rope_local_base_freq": 1e4},
    {"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6}}}])
def test_two_tables_are_seen_in_the_file_however_it_spells_them(spelled: dict[str, Any]) -> None:
    raw = tiny._BASE | {"model_type": "gemma3_text", "sliding_window": 512, "head_dim": 16} | spelled
    decoder = shape.decoder(shape.as_config(raw), HTP, 64)
    assert decoder.rotary_names() == ["position_ids_cos", "position_ids_sin",
                                      "swa_position_ids_cos", "swa_position_ids_sin"]


def test_a_norm_without_an_epsilon_is_let_through() -> None:
    assert shape.decoder(tiny.config("llama", rms_norm_eps=0.0), HTP, 16).layers == 2


def test_logits_that_are_no_numbers_are_called_so() -> None:
    model = tiny.model("llama")
    model.model.norm.weight.data[3] = torch.nan
    decoder = shape.decoder(model.config, HTP, 16)
    with pytest.raises(UnsupportedError, match="NaN or infinite"):
        export.export(DecoderGraph(model, HTP), decoder)


@pytest.mark.parametrize("family", ["mistral", "gemma2"])
def test_a_window_as_long_as_the_context_is_no_window(family: str) -> None:
    conf = tiny.config(family, sliding_window=16)
    assert shape.decoder(conf, HTP, 16).layers == 2
    with pytest.raises(UnsupportedError, match=r"target\.context to 16 or less"):
        shape.decoder(conf, HTP, 17)


def test_a_window_that_the_config_switches_off_is_ignored() -> None:
    conf = _config("Qwen2Config", use_sliding_window=False, sliding_window=4)
    assert shape.decoder(conf, HTP, 64).layers == 2


def test_interleaved_tables_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="half-split"):
        rope.tables(tiny.build(_config("CohereConfig")), 16)


def test_layers_that_read_positions_beside_rope_are_refused() -> None:
    """Ministral scales its queries by position; at position 0, where the graph is traced, one doesn't see it."""
    conf = _config("Ministral3Config")
    module = DecoderGraph(tiny.build(conf), HTP)
    with pytest.raises(UnsupportedError, match="ministral3: its layers read token positions beside RoPE"):
        export.export(module, shape.decoder(conf, HTP, 16))
    assert module.position == 0


def test_attention_with_arguments_it_would_ignore_is_refused() -> None:
    """GptOss hands attention its sinks (s_aux)."""
    attend = transformers.AttentionInterface()[attention.use(HTP)]
    query, key = torch.zeros(1, 2, 3, 4), torch.zeros(1, 1, 4, 3)
    mask, value = torch.zeros(1, 1, 3, 3), torch.zeros(1, 1, 3, 4)
    with pytest.raises(UnsupportedError, match="also takes s_aux"):
        attend(torch.nn.Module(), query, key, value, mask, scaling=1.0, s_aux=torch.zeros(2))
    attend(torch.nn.Module(), query, key, value, mask, scaling=1.0, dropout=0.0, s_aux=None)


def test_attention_without_the_graphs_mask_is_an_error() -> None:
    attend = transformers.AttentionInterface()[attention.use(HTP)]
    with pytest.raises(ValueError, match="mask input was not used"):
        attend(torch.nn.Module(), *[torch.zeros(1, 1, 2, 2)] * 3, None, scaling=1.0)


def test_rows_of_a_layer_type_that_the_config_does_not_tell_apart() -> None:
    model: Any = tiny.model("gemma3")
    module = DecoderGraph(model, HTP)
    decoder = shape.decoder(model.config, HTP, 16)
    module(*decoder.example(2, 2))
    with pytest.raises(UnsupportedError, match="layers of type 'chunked_attention'"):
        module._rotary(torch.zeros(1), None, "chunked_attention")


def test_layers_without_a_cache_of_their_own_are_refused() -> None:
    model: Any = tiny.model("llama")
    model.model.layers[1].self_attn.layer_idx = 0
    decoder = shape.decoder(model.config, HTP, 16)
    with pytest.raises(UnsupportedError, match="a cache of its own"):
        DecoderGraph(model, HTP)(*decoder.example(2, 2))


def test_what_torch_cannot_export_is_named_in_one_line() -> None:
    model: Any = tiny.model("llama")

    def forward(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum().item() > 0 else -x

    model.model.layers[0].mlp.forward = forward
    decoder = shape.decoder(model.config, HTP, 16)
    with pytest.raises(UnsupportedError, match="torch could not export llama: ") as caught:
        export.export(DecoderGraph(model, HTP), decoder)
    assert "\n" not in caught.value.message
    assert "\x1b" not in caught.value.message


def test_a_model_without_rotary_module_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no rotary embedding at model"):
        DecoderGraph(tiny.build(_config("GPT2Config")), HTP)
    with pytest.raises(UnsupportedError, match="no float32 frequencies at model"):
        rope.tables(tiny.build(_config("GPT2Config")), 16)
