"""A checkpoint: a HuggingFace folder, a hub id or a GGUF file; opened without torch, loaded on demand.

`open_checkpoint` reads only config and headers, so that a recipe can be checked, and an unchanged build
skipped, before torch and transformers are imported.
"""

from edgeforge.checkpoint.load import VOCABULARIES, load_model, load_tokenizer
from edgeforge.checkpoint.opened import Checkpoint, TensorInfo
from edgeforge.checkpoint.source import locate, open_checkpoint
from edgeforge.checkpoint.unread import check_config

__all__ = ["VOCABULARIES", "Checkpoint", "TensorInfo", "check_config", "load_model", "load_tokenizer", "locate",
           "open_checkpoint"]
