"""The chat template: conversations as token ids, and what in them the template wrote itself."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from edgeforge.calibrate.sections import Turn
from edgeforge.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Window: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]

_TODAY = datetime(2025, 1, 1)
"""a template that prints today's date would make other windows, and another cache key, every day"""
_DATE = re.compile(r"""strftime_now\(\s*(['"])(.*?)\1\s*\)""")


def render(tokenizer: PreTrainedTokenizerBase, turns: Sequence[Turn], reply: bool = False) -> list[int]:
    """Ids of a conversation; reply: up to where the assistant speaks next.

    Raises:
        CheckpointError: the template refuses it.
    """
    from jinja2 import TemplateError

    messages = [{"role": role, "content": content} for role, content in turns]
    try:
        template = _DATE.sub(lambda call: repr(_TODAY.strftime(call[2])), tokenizer.get_chat_template())
        text = tokenizer.apply_chat_template(
            messages, chat_template=template, tokenize=False, add_generation_prompt=reply)
    except (TemplateError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the chat template refuses a plain conversation of user and assistant: {error}",
            "repair chat_template.jinja, or remove it to calibrate on plain text",
        ) from error
    return plain_ids(tokenizer, text)


def plain_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids of a text, without what the tokenizer puts around one."""
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return ids


def opening(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids that the tokenizer puts before any text."""
    bare: list[int] = tokenizer("a", add_special_tokens=False)["input_ids"]
    full: list[int] = tokenizer("a")["input_ids"]
    return next((full[:i] for i in range(len(full)) if full[i: i + len(bare)] == bare), [])


def template_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The special ids that the chat template writes around the turns of a conversation; empty without one."""
    if not tokenizer.chat_template:
        return frozenset()
    special = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
    return frozenset(special.intersection(render(tokenizer, question("Why?", "Because."))))


def question(asked: str, answer: str) -> tuple[Turn, Turn]:
    return ("user", asked), ("assistant", answer)


@dataclass(frozen=True)
class Frame:
    """What a chat template writes itself: special ids anywhere, and the words before the first question."""

    special: frozenset[int] = frozenset()
    preamble: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Frame:
        if not tokenizer.chat_template:
            return cls()
        one, other = (render(tokenizer, question(q, "Because.")) for q in ("Why?", "How so?"))
        return cls(template_ids(tokenizer), _common_start(one, other))

    def pieces(self, window: Window) -> Iterator[tuple[int, Window]]:
        """The stretches of a window that are not the template's, each with its offset."""
        ids, size = window.tolist(), len(self.preamble)
        own = [i not in self.special for i in ids]
        for i in range(len(ids) if size else 0):
            if ids[i] == self.preamble[0] and tuple(ids[i: i + size]) == self.preamble[:len(ids) - i]:
                own[i: i + size] = [False] * min(size, len(ids) - i)
        for mine, group in itertools.groupby(range(len(ids)), key=own.__getitem__):
            if mine:
                stretch = list(group)
                yield stretch[0], window[stretch[0]: stretch[-1] + 1]


def _common_start(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
    return tuple(first for first, _ in same)
