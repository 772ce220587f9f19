"""Keys of a config that the model's code never reads: refused, because the model is then not the one meant.

The config and the model are made once without weights (on torch's meta device, a fraction of a second) and run
on two tokens while every read of the config is noted. What the model's own code did not read is either
metadata, or has the value that the config class gives anyway, or is an error.
"""

from __future__ import annotations

import contextlib
import copy
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from edgeforge.checkpoint import loaded
from edgeforge.checkpoint.opened import CONFIG, Checkpoint
from edgeforge.checkpoint.words import names, one_line
from edgeforge.errors import CheckpointError, UnsupportedError

# Whose reads count: code that computes. transformers' loading, saving and generation read any key.
_COMPUTING = ("transformers.models.", "transformers.modeling_rope_utils", "transformers.masking_utils",
              "transformers.modeling_layers", "transformers.integrations.")
# Says where the file comes from, how it is trained, sampled or run: nothing about what the model computes.
_METADATA = re.compile(
    r"architectures|model_type|transformers_version|(torch_)?dtype|_?name_or_path|_model_name_or_path|_commit_hash|"
    r"auto_map|tokenizer_class|transformers\.js_config|is_\w+_config|neftune\w*|unsloth_\w+|_?attn_implementation\w*|"
    r"use_flash_attn|_flash_attn_2_enabled|use_cache|cache_implementation|initializer_\w+|init_\w+|pretraining_tp|"
    r"gradient_checkpointing|output_(attentions|hidden_states|router_logits|scores|past)|return_dict\w*|"
    r"use_return_dict|is_decoder|is_encoder_decoder|"
    r"(id2label|label2id|num_labels|problem_type|finetuning_task|task_specific_params)|tie_word_embeddings|"
    r"max_position_embeddings|model_max_length|max_window_layers|\w+_token_ids?|\w*dropout\w*|\w+_pdrop|"
    r"\w*aux_loss\w*|chunk_size_feed_forward|"
    r"intermediate_size|full_attn_idxs"  # what a mixture of experts or layer_types leave unread, the shapes prove
)
_TWINS = {"hidden_act": "hidden_activation"}  # written both ways by Gemma; fine when they agree
_TOKENS, _MOST = 2, 80


def check_config(checkpoint: Checkpoint) -> Any:
    """The checkpoint's config as transformers' class; reads no weights.

    Raises:
        CheckpointError: the config makes no model, has a key that nothing reads, or other sizes than the weights.
        UnsupportedError: transformers knows no causal LM for this `model_type`.
    """
    with _quiet(), _noting_reads() as reads:
        config = make_config(checkpoint)
        rope = _note_rope(config)
        _run_without_weights(checkpoint, config)
    if rope:
        made = {layers: dict(one) for layers, one in rope.items()}
        config.rope_parameters = made.get("", {**config.rope_parameters, **made})
    unread = _unread(checkpoint.config, config, reads)
    for layers, one in rope.items():
        path = f"rope_parameters.{layers}." if layers else "rope_parameters."
        unread += [f"{path}{k}: {v}"[:_MOST] for k, v in one.items() if k not in one.read and v is not None]
        key = "rope_local_base_freq" if layers == "sliding_attention" else "rope_theta"
        theta = checkpoint.config.get(key)
        if theta is not None and one["rope_theta"] != theta:
            unread.append(f"{key}: {theta}"[:_MOST])
    if unread:
        raise CheckpointError(
            f"{checkpoint.source}: {type(config).__name__.removesuffix('Config')} in transformers reads none of these "
            f"keys of its {checkpoint.config_name}: {names(unread)}",
            "a model that was trained with them would come out as another one: is model_type right? Remove a key from "
            f"{CONFIG} when it is only a note",
        )
    return config


def make_config(checkpoint: Checkpoint) -> Any:
    """config.json as transformers' class; raises as `check_config`, of what the values alone show."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    kind = checkpoint.config["model_type"]
    if kind not in CONFIG_MAPPING or CONFIG_MAPPING[kind] not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedError(
            f"transformers has no causal language model for the model_type {kind!r} of {checkpoint.source}",
            "a newer transformers may have it; EdgeForge does not run code that comes with a checkpoint",
        )
    try:
        return CONFIG_MAPPING[kind].from_dict(copy.deepcopy(dict(checkpoint.config)))
    except Exception as error:  # each config class has its own ways to be unhappy
        raise _no_model(checkpoint, error) from error


def _run_without_weights(checkpoint: Checkpoint, config: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    except Exception as error:
        raise _no_model(checkpoint, error) from error
    have, want = checkpoint.tensors, {n: tuple(t.shape) for n, t in model.state_dict().items()}
    if wrong := [(n, have[n].shape, want[n]) for n in sorted(have.keys() & want.keys()) if have[n].shape != want[n]]:
        raise loaded.other_shapes(checkpoint, wrong)
    if checkpoint.format == "gguf" and (extra := have.keys() - want.keys()):  # transformers would drop them silently
        raise loaded.no_place(checkpoint, type(model).__name__, extra)
    for module in model.modules():  # RoPE that grows with the position would look at positions, which are not there
        if isinstance(kind := getattr(module, "rope_type", None), str):
            module.rope_type = "default"
        elif isinstance(kind, dict):
            module.rope_type = dict.fromkeys(kind, "default")
    with torch.device("meta"), contextlib.suppress(Exception):
        # An empty cache, because without one transformers looks for packed sequences in the positions. A model
        # whose path depends on data cannot run without any: what its constructor read has to do.
        model(torch.zeros(1, _TOKENS, dtype=torch.int64), cache=DynamicCache())


def _no_model(checkpoint: Checkpoint, error: Exception) -> CheckpointError:
    return CheckpointError(f"{checkpoint.config_file} makes no model: {one_line(error)}",
                           "take config.json from the original model")


def _unread(given: Any, config: Any, reads: set[str]) -> list[str]:
    """`key: value` of each key without effect."""
    present, aliases = vars(config), type(config).attribute_map
    defaults = vars(type(config)())
    found = []
    for name, value in given.items():
        key = aliases.get(name, name)
        if key in reads or key not in present or _METADATA.fullmatch(name):
            continue  # not present: the config class has taken it apart, as rope_theta and rope_scaling
        off = value is None or value is False or value in ("", [], {})
        usual = value == defaults[key] if key in defaults else off
        if not usual and not (name in _TWINS and value == given.get(_TWINS[name])):
            found.append(f"{name}: {value}"[:_MOST])
    return found


class _NotedDict(dict[str, Any]):
    """A dict that knows which of its keys were asked for."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


def _note_rope(config: Any) -> dict[str, _NotedDict]:
    """Puts noting dicts in the place of RoPE's parameters: by layer type, or "" where they are those of all layers."""
    rope = config.rope_parameters if hasattr(config, "rope_parameters") else None
    if not isinstance(rope, dict) or not rope:
        return {}
    nested = any(isinstance(v, dict) for v in rope.values())
    noted = {k: _NotedDict(v) for k, v in (rope if nested else {"": rope}).items() if isinstance(v, dict)}
    for one in noted.values():
        one.read |= {"type", "rope_type", "rope_theta", "partial_rotary_factor"}
    config.rope_parameters = {**rope, **noted} if nested else noted[""]
    return noted


@contextlib.contextmanager
def _noting_reads() -> Iterator[set[str]]:
    """The attributes of any config that computing code reads while this lasts."""
    from transformers import PreTrainedConfig

    found: set[str] = set()
    original = PreTrainedConfig.__getattribute__

    def noting(self: Any, key: str) -> Any:
        if sys._getframe(1).f_globals.get("__name__", "").startswith(_COMPUTING):
            found.add(original(self, "attribute_map").get(key, key))
        return original(self, key)

    PreTrainedConfig.__getattribute__ = noting
    try:
        yield found
    finally:
        PreTrainedConfig.__getattribute__ = original


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, about sizes of zero
            yield
    finally:
        logging.set_verbosity(level)
