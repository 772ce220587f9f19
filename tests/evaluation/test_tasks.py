"""Which ending is likeliest, by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from edgeforge.evaluation.tasks import Item, answers

VOCAB = 128


def letters(text: str) -> dict[str, list[int]]:
    """A tokenizer of one id a character."""
    return {"input_ids": [ord(c) for c in text]}


def repeats(ids: Sequence[int]) -> Iterator[np.ndarray]:
    """A model that expects the last character again, in pieces of three rows."""
    logits = np.zeros((len(ids), VOCAB), np.float32)
    logits[np.arange(len(ids)), ids] = 5
    yield from np.array_split(logits, range(3, len(ids), 3))


@pytest.mark.parametrize(("endings", "likeliest"), [
    (("abcd", "aaaa"), 1),
    (("aaaa", "abcd"), 0),
    (("ab", "abababababab"), 1),  # no letter is expected in either, and the space before them costs, too
    (("aabb", "ab"), 0),  # the sum of the shorter one is larger, by letter it is not
])
def test_by_letter(endings: tuple[str, ...], likeliest: int) -> None:
    reader: Any = letters
    for answer in range(2):
        (right,) = answers(repeats, reader, [Item("a", endings, answer)], 64, lambda text: None)
        assert right == (answer == likeliest)


def test_a_long_context_loses_its_beginning() -> None:
    seen = []

    def read(ids: Sequence[int]) -> Iterator[np.ndarray]:
        seen.append("".join(map(chr, ids)))
        return repeats(ids)

    reader: Any = letters
    answers(read, reader, [Item("x" * 50 + "end", ("one", "three"), 0)], 10, lambda text: None)
    assert seen == ["xxxend one", "xend three"]
