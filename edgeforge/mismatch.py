"""Does config.json belong to the weights? What their headers and the files beside them show, without torch.

Only what cannot load is told: transformers has the last word about the rest, when the build begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edgeforge.adapt.shape import Decoder
from edgeforge.checkpoint import VOCABULARIES, Checkpoint, TensorInfo
from edgeforge.checkpoint.opened import CONFIG
from edgeforge.estimate import EMBEDDING, HEAD, LAYER, tensor
from edgeforge.findings import Finding

_OTHER = f"are {CONFIG} and weights of one model, and whole?"


def check(found: Checkpoint, decoder: Decoder) -> Iterator[Finding]:
    """What is certain to fail, each with where it stands."""
    where = str(found.config_file)
    if found.format != "gguf" and not any((found.folder / name).is_file() for name in VOCABULARIES):
        yield Finding("error", str(found.folder), "has no tokenizer",
                      "copy tokenizer.json and tokenizer_config.json into it")
    layers = {int(match[1]) for name in found.tensors if (match := LAYER.search(name))}
    if layers and (lacks := min(set(range(len(layers) + 1)) - layers)) < decoder.layers:
        yield Finding("error", where, f"num_hidden_layers is {decoder.layers}, and the weights have no layer {lacks}",
                      _OTHER)
    yield from _table(where, found.config, found.tensors, decoder)


def _table(where: str, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo],
           decoder: Decoder) -> Iterator[Finding]:
    table = tensor(tensors, EMBEDDING)
    if table is None:
        return
    if table.shape != (decoder.vocab, decoder.hidden):
        yield Finding("error", where, f"vocab_size {decoder.vocab} and hidden_size {decoder.hidden}, and the embedding "
                      f"is {list(table.shape)}", _OTHER)
    if config.get("tie_word_embeddings") is False and tensor(tensors, HEAD) is None:
        yield Finding("error", where, "tie_word_embeddings is false, and the weights have no head",
                      "set it to true if embedding and head are one tensor")
