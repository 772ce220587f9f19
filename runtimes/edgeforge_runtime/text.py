"""Between text and tokens: tokenizer.json, the chat template, end ids, and streaming back to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from .errors import TextError
from .template import ChatTemplate
from .typed import read_json, shown

_SPECIALS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TextCodec:
    """A HuggingFace tokenizer folder without transformers.

    Attributes:
        eos: ids that tokenizer_config.json and generation_config.json call the end.
        size: ids that mean something are 0..size-1; a model's vocabulary may be padded beyond.
        template: the chat template, None when the folder has none.
    """

    def __init__(self, folder: Path) -> None:
        """Raises TextError when tokenizer.json is missing or a file is broken."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise TextError(f"{path} is missing")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises bare Exception
            raise TextError(f"{path} is damaged: {error}") from error
        config = _json(folder / "tokenizer_config.json")
        specials = {name: _content(config[name]) for name in _SPECIALS if config.get(name) is not None}
        self.size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self.eos = self._end_ids(specials, _json(folder / "generation_config.json"))
        self.template = _template(folder, config, specials)

    def encode(self, text: str) -> list[int]:
        """Ids of a plain text, with what the tokenizer itself puts around one (such as BOS)."""
        return list(self._tokenizer.encode(text).ids)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids of a conversation up to where the assistant speaks; the template alone writes BOS.

        Raises:
            TextError: no template, or the template refuses the messages.
        """
        if self.template is None:
            raise TextError("the bundle has no chat template: give it plain text to go on with (--raw)")
        text = self.template.render(messages)
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def _end_ids(self, specials: Mapping[str, str], generation: Mapping[str, Any]) -> frozenset[int]:
        named = self._tokenizer.token_to_id(specials["eos_token"]) if "eos_token" in specials else None
        listed = generation.get("eos_token_id")
        ids = [named, *(listed if isinstance(listed, list) else [listed])]
        if wrong := [i for i in ids if i is not None and (not isinstance(i, int) or isinstance(i, bool))]:
            raise TextError(f"generation_config.json ends answers with {shown(wrong[0])}: that is no token id")
        return frozenset(i for i in ids if i is not None)


class Detokenizer:
    """Streams text behind a prompt: whole characters only, spaces as in the text decoded at once.

    A tokenizer decodes a token by its neighbours (a leading space, the bytes of one character), so
    each step decodes a short window, which starts where the last piece told started.
    """

    _BROKEN = "\ufffd"

    def __init__(self, codec: TextCodec, prompt: Sequence[int]) -> None:
        self._codec = codec
        self._ids = list(prompt)
        self._start, self._settled = 0, len(self._ids)
        self._told = codec.decode(self._ids)

    def push(self, token: int) -> str:
        """Text that became certain with this token; empty inside a character."""
        self._ids.append(token)
        text = self._codec.decode(self._ids[self._start :])
        if len(text) <= len(self._told) or text.endswith(self._BROKEN):
            return ""
        piece = text[len(self._told) :]
        self._start, self._settled = self._settled, len(self._ids)
        self._told = self._codec.decode(self._ids[self._start :])
        return piece

    def flush(self) -> str:
        """What is left at the end: an incomplete character reads as U+FFFD."""
        text = self._codec.decode(self._ids[self._start :])
        piece = text[len(self._told) :]
        self._told = text
        return piece


def _json(path: Path) -> dict[str, Any]:
    """A JSON object; empty when there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = read_json(path)
    except (OSError, ValueError) as error:
        raise TextError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise TextError(f"{path} is not a JSON object")
    return value


def _content(token: Any) -> str:
    """A special token's text: a string, or a mapping with content."""
    text = token.get("content") if isinstance(token, Mapping) else token
    if not isinstance(text, str) or not _is_text(text):
        raise TextError(f"tokenizer_config.json names a special token {shown(token)}: that is no text")
    return text


def _template(folder: Path, config: Mapping[str, Any], specials: Mapping[str, str]) -> ChatTemplate | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return ChatTemplate(path.read_text(encoding="utf-8"), specials)
        except (OSError, UnicodeDecodeError) as error:
            raise TextError(f"{path} cannot be read: {error}") from error
    source = config.get("chat_template")
    if isinstance(source, list):  # several templates by name
        named = {t.get("name"): t.get("template") for t in source if isinstance(t, Mapping) and _is_text(t.get("name"))}
        source = named.get("default")
    return ChatTemplate(source, specials) if isinstance(source, str) else None


def _is_text(value: Any) -> bool:
    """A string that can be written as UTF-8: JSON also spells halves of characters."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)
