"""Two small tokenizers of the families that stream differently, written as HuggingFace folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

PAD, START, END = "<pad>", "<|start|>", "<|end|>"
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def byte_level() -> Tokenizer:
    """GPT-2's alphabet without merges: a token a byte, so each CJK character spans three."""
    words = [PAD, START, END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(w, special=True, normalized=False) for w in (PAD, START, END)])
    return made


def byte_fallback() -> Tokenizer:
    """Llama-2's and Gemma's way: a leading space is a lower bar, unknown characters are byte tokens."""
    words = [PAD, START, END, *(f"<0x{i:02X}>" for i in range(256)), "\u2581", *"abcdefghij"]
    merges = [("\u2581", letter) for letter in "abc"]
    words += [a + b for a, b in merges]
    made = Tokenizer(
        models.BPE({w: i for i, w in enumerate(words)}, merges, byte_fallback=True, fuse_unk=True)
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens([AddedToken(w, special=True, normalized=False) for w in (PAD, START, END)])
    return made


def write(folder: Path, tokenizer: Tokenizer, **config: Any) -> Path:
    """tokenizer.json, and tokenizer_config.json with a chat template and whatever is given."""
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": END, "chat_template": TEMPLATE, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder
