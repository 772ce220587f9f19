"""A checkpoint as a torch module and a tokenizer. torch and transformers are imported here, on demand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from edgeforge.checkpoint import gguf_load, loaded, pickled, unread
from edgeforge.checkpoint.opened import Checkpoint
from edgeforge.checkpoint.words import one_line
from edgeforge.errors import CheckpointError, EdgeForgeError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""one of these is in every folder that has a tokenizer"""


def load_model(checkpoint: Checkpoint) -> torch.nn.Module:
    """The checkpoint as a transformers causal LM: float32, eval mode, eager attention.

    Every tensor of the checkpoint goes into the model, every parameter comes from the checkpoint or is tied
    to one that does, and every key of the config is read or says nothing. Tensors that the architecture
    itself declares to skip (`inv_freq`, extra multi-token heads) are the only exception.

    Raises:
        CheckpointError: keys unread; tensors missing, left over, of another shape, tied against the config,
            or not finite.
        UnsupportedError: transformers knows no causal LM for this `model_type`.
    """
    config = unread.check_config(checkpoint)
    try:
        with _quiet_transformers():
            model, info = _from_pretrained(checkpoint, config)
    except (OSError, ValueError, RuntimeError, KeyError, MemoryError, SafetensorError) as error:
        raise CheckpointError(
            f"transformers cannot load {checkpoint.source}: {one_line(error)}",
            "AutoModelForCausalLM.from_pretrained(FOLDER) prints its full report",
        ) from error
    loaded.check(checkpoint, model, info)
    module: torch.nn.Module = model.eval()
    return module


def _from_pretrained(checkpoint: Checkpoint, config: Any) -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, GenerationConfig, GgufConfig

    how: dict[str, Any] = {
        "config": config, "dtype": torch.float32, "attn_implementation": "eager", "local_files_only": True,
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,  # so that they come back named; refused by `loaded`
    }
    kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]  # not the Auto class, which looks for code in the folder
    if checkpoint.format == "gguf":
        tokens = load_tokenizer(checkpoint)
        dequantize = GgufConfig(dequantize=True)  # without it the model runs but can't be saved
        with gguf_load.alone(checkpoint) as place, gguf_load.no_bar():
            model, info = kind.from_pretrained(**place, **how, quantization_config=dequantize)
        model.generation_config = GenerationConfig(
            bos_token_id=tokens.bos_token_id, eos_token_id=gguf_load.stops(tokens), pad_token_id=tokens.pad_token_id)
        return model, info
    if checkpoint.format == "pickle":
        state = pickled.load(checkpoint.weight_files)
        model, info = kind.from_pretrained(None, state_dict=state, **how)
        with contextlib.suppress(OSError):  # most folders have none
            model.generation_config = GenerationConfig.from_pretrained(checkpoint.folder, local_files_only=True)
        return model, info | {"names": set(state)}
    return kind.from_pretrained(checkpoint.folder, use_safetensors=True, **how)  # type: ignore[no-any-return]


def load_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    """The checkpoint's own tokenizer.

    Raises:
        CheckpointError: no tokenizer files, or damaged ones; a config that makes no model, which is read with them.
        UnsupportedError: a GGUF file whose pre-tokenizer is not known.
    """
    from transformers import AutoTokenizer

    folder = checkpoint.folder
    # For some model types transformers makes up an empty tokenizer when the files are missing.
    if checkpoint.format != "gguf" and not any((folder / name).is_file() for name in VOCABULARIES):
        raise CheckpointError(f"{folder} has no tokenizer", "copy tokenizer.json and tokenizer_config.json into it")
    try:
        if checkpoint.format == "gguf":
            return gguf_load.load_tokenizer(checkpoint)
        unread.make_config(checkpoint)  # AutoTokenizer reads it too: what is wrong there is not the tokenizer's
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except EdgeForgeError:
        raise
    except Exception as error:  # `tokenizers` raises bare Exception for a damaged tokenizer.json
        raise CheckpointError(
            f"the tokenizer in {checkpoint.source} cannot be read: {one_line(error)}",
            "take the tokenizer files from the original model",
        ) from error


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No progress bar and no load report: `load_model` says itself what is wrong."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
