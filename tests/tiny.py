"""Tiny random decoders of every family, and a float artifact of one that the runtime can open.

Weights are far from zero and norm gains and biases far from their initial values, so that a part of the
model which is skipped costs tens of decibels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch
import transformers
from edgeforge_runtime import manifest as m
from edgeforge_runtime.rope import Tables
from edgeforge_runtime.session import Session
from transformers import AutoModelForCausalLM, PreTrainedConfig

from edgeforge import artifact
from edgeforge.adapt import export, mask, rope, shape
from edgeforge.adapt.decoder import DecoderGraph
from edgeforge.evaluation import logits as evaluation
from edgeforge.graph import bind, edit, split, store
from edgeforge.metrics import sqnr_db
from edgeforge.targets import Profile

CONTEXT, WIDTH, TOKENS = 48, 8, 41
"""40 of the context's tokens: 25 in chunks of 8 (the last chunk is ragged), 16 one by one"""

torch.set_num_threads(1)

Floats = npt.NDArray[np.float32]

_BASE: dict[str, Any] = {
    "vocab_size": 160, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
_YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 32}
_TWO_ROPES = {"sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
              "full_attention": {"rope_type": "default", "rope_theta": 10000.0}}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama-rope3": ("LlamaConfig", {"rope_parameters": _LLAMA3}),
    "llama-mqa": ("LlamaConfig", {"num_key_value_heads": 1}),
    "llama-mha": ("LlamaConfig", {"num_key_value_heads": 4}),
    "llama-wide-heads": ("LlamaConfig", {"hidden_size": 40, "head_dim": 16}),
    "llama-tied": ("LlamaConfig", {"tie_word_embeddings": True}),
    "llama-bias": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama-1-layer": ("LlamaConfig", {"num_hidden_layers": 1}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "mistral": ("MistralConfig", {"sliding_window": CONTEXT}),
    "phi3": ("Phi3Config", {}),
    "phi3-partial": ("Phi3Config", {"hidden_size": 64, "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}),
    "phi": ("PhiConfig", {"num_key_value_heads": 4}),
    "stablelm-parallel": ("StableLmConfig", {"use_parallel_residual": True}),
    "granite": ("GraniteConfig", {"embedding_multiplier": 3.0, "attention_multiplier": 0.2,
                                  "residual_multiplier": 0.5, "logits_scaling": 2.0}),
    "smollm3": ("SmolLM3Config", {"no_rope_layers": [1, 0]}),
    "olmo2": ("Olmo2Config", {}),
    "gemma2": ("Gemma2Config", {"head_dim": 8, "query_pre_attn_scalar": 20, "sliding_window": CONTEXT}),
    "gemma3": ("Gemma3TextConfig", {
        "head_dim": 16, "query_pre_attn_scalar": 20, "sliding_window": CONTEXT, "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "rope_parameters": _TWO_ROPES}),
    "olmo3": ("Olmo3Config", {
        "sliding_window": CONTEXT, "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": _TWO_ROPES | {"full_attention": _YARN}}),
}
"""name: (transformers' config class, what differs from _BASE)"""


def config(family: str, **changes: Any) -> PreTrainedConfig:
    """The family's config with changes."""
    name, own = FAMILIES[family]
    return getattr(transformers, name)(**_BASE | own | changes)


def model(family: str, **changes: Any) -> torch.nn.Module:
    """A float32 random model; the same one for the same arguments."""
    return build(config(family, **changes))


def build(conf: PreTrainedConfig) -> torch.nn.Module:
    """A random model from a config, every parameter far from its initial value."""
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(conf, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(1)
    for name, parameter in made.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim == 1:
            centre = 0.0 if name.endswith("bias") or "gemma" in conf.model_type else 1.0
            parameter.data = centre + 0.3 * noise
        else:
            parameter.data = noise * (1.5 / parameter.shape[-1]**0.5)
    return made


def ids(count: int = TOKENS, vocab: int = 160) -> npt.NDArray[np.int64]:
    return np.random.default_rng(7).integers(3, vocab, count)


@dataclass(frozen=True)
class Adapted:
    """What the adapt stage makes of a model: the exported graph, its sizes and RoPE tables, and the truth."""

    model: ir.Model
    decoder: shape.Decoder
    tables: Tables
    expected: Floats
    parameters: frozenset[str]


def adapt(torch_model: torch.nn.Module, profile: Profile, context: int = CONTEXT, tokens: int = TOKENS) -> Adapted:
    """Adapts torch_model, which is changed on the way; expected are its logits before."""
    expected = hf_logits(torch_model, ids(tokens, torch_model.config.vocab_size))
    parameters = frozenset(name for name, _ in torch_model.named_parameters(remove_duplicate=False))
    above = mask.spread(torch_model, [ids(tokens, torch_model.config.vocab_size)])
    decoder = shape.decoder(torch_model.config, profile, context)
    decoder = dataclasses.replace(decoder, masked=mask.depth(above, profile))
    tables = rope.tables(torch_model, context)
    exported = export.export(DecoderGraph(torch_model, profile), decoder)
    return Adapted(exported, decoder, tables, expected, parameters)


def hf_logits(torch_model: torch.nn.Module, tokens: npt.NDArray[np.int64]) -> Floats:
    """The HuggingFace model's own logits of one window, float32 [tokens, vocab]."""
    return next(iter(evaluation.hf_logits(torch_model, [tokens])))


def write(folder: Path, made: Adapted, graph: ir.Model, context: int = CONTEXT, width: int = WIDTH) -> Path:
    """An artifact folder around graph (made.model or what a pass made of it)."""
    folder.mkdir(parents=True, exist_ok=True)
    store.save(graph, folder)
    target = artifact.whole(made.decoder, [width, 1], context)
    manifest(folder, made, target, context)
    return folder


def manifest(folder: Path, made: Adapted, target: m.Target, context: int = CONTEXT) -> None:
    """manifest.json and the RoPE tables of an artifact."""
    artifact.save_rope(folder, made.tables)
    artifact.save_decoder(folder, made.decoder)
    profile = made.decoder.profile
    described = m.Model("tiny", made.decoder.layers, made.decoder.vocab, context, (2,), 1, 0, made.decoder.masked,
                        profile.key_axis, profile.value_axis)
    m.Manifest(described, artifact.ROPE, {"cpu": target}).save(folder)


def logits(folder: Path, tokens: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Rows of chunked prefill, and of the single steps behind it, through the runtime."""
    with Session.open(folder, threads=1, exact=True) as session:
        rows = list(evaluation.session_logits(session, tokens))
    prefill = len(rows) - 16
    return np.concatenate(rows[:prefill]), np.concatenate(rows[prefill:])


def decibels(folder: Path, expected: Floats, tokens: npt.NDArray[np.int64] | None = None) -> tuple[float, float]:
    """SQNR of prefill and of decode against expected."""
    tokens = ids(len(expected), expected.shape[-1]) if tokens is None else tokens
    prefill, decode = logits(folder, tokens)
    return sqnr_db(expected[:len(prefill)], prefill), sqnr_db(expected[len(prefill):], decode)


def parameter_names(graph: ir.Graph) -> set[str]:
    """The module paths of the parameters in graph; a slice or a head of one counts as the whole."""
    names = {str(v.name).split("/")[0] for v in graph.initializers.values() if v.uses()}
    return {name for name in names if name.endswith((".weight", ".bias"))}


def op_types(nodes: Sequence[ir.Node] | ir.Graph) -> dict[str, int]:
    """How many nodes of each type."""
    found: dict[str, int] = {}
    for node in nodes:
        found[node.op_type] = found.get(node.op_type, 0) + 1
    return found


def write_parts(folder: Path, made: Adapted, whole: ir.Model, part_bytes: int, context: int = CONTEXT) -> int:
    """An artifact of static parts, as the split stage makes them, in float; returns how many parts."""
    plan = split.plan(whole.graph, {}, part_bytes)
    parts = split.extract(whole, plan.cuts, made.decoder.output_names())
    graphs = []
    for ar in (WIDTH, 1):
        bound = []
        for number, part in enumerate(parts):
            name = f"ar{ar}_{number}"
            (folder / name).mkdir(parents=True)
            static = bind.bind(part.clone(), ar, context)
            store.save(static, folder / name)
            bound.append(m.Part(f"{name}/{store.MODEL}", name, _tensors(static.graph.inputs),
                                _tensors(static.graph.outputs)))
        graphs.append(m.Graph(ar, context, tuple(bound)))
    manifest(folder, made, m.Target("onnx-cpu", tuple(graphs)), context)
    return len(parts)


def _tensors(values: Sequence[ir.Value]) -> tuple[m.Tensor, ...]:
    return tuple(m.Tensor(str(v.name), "int32" if v.name == m.IDS else "float32",
                          tuple(d for d in edit.known_dims(v) if isinstance(d, int))) for v in values)
