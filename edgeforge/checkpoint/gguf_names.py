"""GGUF's names of tensors, and the module paths that they have in transformers.

Both sides: https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/tensor_mapping.py.
"""

from __future__ import annotations

import re

_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
_GEMMA = {"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
          "post_ffw_norm": "post_feedforward_layernorm"}
_OWN = {"phi3": {"ffn_up": "mlp.gate_up_proj"}, "gemma2": _GEMMA, "gemma3": _GEMMA}
_FORM = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.(?P<suffix>weight|bias)")


def module_path(architecture: str, name: str) -> str | None:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; None for a name that is not known."""
    if (match := _FORM.fullmatch(name)) is None:
        return None
    if match["layer"] is None:
        part = _ENDS.get(match["part"])
        return part and f"{part}.{match['suffix']}"
    part = (_LAYER | _OWN.get(architecture, {})).get(match["part"])
    return part and f"model.layers.{match['layer']}.{part}.{match['suffix']}"
