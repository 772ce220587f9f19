"""Weights and tokenizer out of a GGUF file, through transformers."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeforge.checkpoint.opened import Checkpoint
from edgeforge.errors import CheckpointError, UnsupportedError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# How llama.cpp (llama-vocab.cpp) cuts text before byte pairs are joined, by `tokenizer.ggml.pre`: every digit
# alone, then GPT-2's rule; or GPT-2's rule alone. transformers builds the latter for whatever it doesn't know.
_DIGITS_ALONE = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
_GPT2 = {"gpt-2", "mpt", "olmo", "jais", "phi-2"}
# A turn ends with one, a document that the model runs into with the other; the header names one token only.
_STOPS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "<eos>", "</s>")


@contextlib.contextmanager
def alone(checkpoint: Checkpoint) -> Iterator[dict[str, str]]:
    """Arguments of from_pretrained for the file in a folder of its own: what lies beside it must not count."""
    file = checkpoint.weight_files[0]
    with tempfile.TemporaryDirectory(prefix="edgeforge-gguf-") as folder:
        (Path(folder) / "model.gguf").symlink_to(file)
        yield {"pretrained_model_name_or_path": folder, "gguf_file": "model.gguf"}


@contextlib.contextmanager
def no_bar() -> Iterator[None]:
    """transformers' progress bar over the tensors heeds no setting."""
    from functools import partial

    from transformers import modeling_gguf_pytorch_utils as converter

    shown = converter.tqdm
    converter.tqdm = partial(shown, disable=True)
    try:
        yield
    finally:
        converter.tqdm = shown


def stops(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens that end an answer: the declared one first, then the special ones known by their text.

    Not every token of such a text is one: Gemma's vocabulary has HTML's </s>.
    """
    found = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    by_text = {str(token): number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return list(dict.fromkeys([*found, *(by_text[s] for s in _STOPS if s in by_text)]))


def load_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    """The file's tokenizer, with the pre-tokenizer that the file names.

    Raises:
        CheckpointError: the file has none.
        UnsupportedError: its pre-tokenizer is not known: ids would be wrong without a word.
    """
    from transformers import AutoTokenizer

    file, kind = checkpoint.weight_files[0], checkpoint.metadata.get("tokenizer.ggml.model")
    if not checkpoint.metadata.get("tokenizer.ggml.tokens"):
        raise CheckpointError(f"{file} has no tokenizer", "give the HuggingFace folder that the file was made of")
    pre = str(checkpoint.metadata.get("tokenizer.ggml.pre", "default"))
    if kind == "gpt2" and pre not in _known_pre_tokenizers():
        raise UnsupportedError(
            f"{file} names the pre-tokenizer {pre!r}; known are {', '.join(sorted(_known_pre_tokenizers()))}",
            "give the HuggingFace folder that the file was made of",
        )
    with alone(checkpoint) as place:
        tokenizer = AutoTokenizer.from_pretrained(**place, trust_remote_code=False)
    tokenizer.model_max_length = checkpoint.config["max_position_embeddings"]
    if kind == "gpt2" and pre in _DIGITS_ALONE:
        _split_digits(tokenizer)
    return tokenizer


def _known_pre_tokenizers() -> set[str]:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    return _DIGITS_ALONE | _GPT2 | set(GGUF_PRE_TOKENIZER_SPLITS)


def _split_digits(tokenizer: Any) -> None:
    """Without it two or more spaces before a digit become other ids than in the original tokenizer."""
    from tokenizers import pre_tokenizers

    backend = tokenizer.backend_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    if "Digits" not in json.dumps(json.loads(backend.to_str())["pre_tokenizer"]):
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
