"""Which ending is likeliest, by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from edgeforge.errors import EdgeForgeError
from edgeforge.evaluation.tasks import Ending, Item, answers, question

LETTERS = "_ abcdefghijklmnopqrstuvwxyz"
BOS, EOS = 100, 101
VOCAB = 128


def letters(around: str = "$A", merges: Sequence[tuple[str, str]] = ()) -> PreTrainedTokenizerFast:
    """A token a letter, but for what merges, and with special tokens around a text (^ and $: BOS and EOS)."""
    words = {c: i for i, c in enumerate(LETTERS)} | {a + b: 50 + i for i, (a, b) in enumerate(merges)}
    raw = Tokenizer(models.BPE(words | {"<bos>": BOS, "<eos>": EOS}, list(merges)))
    raw.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    raw.post_processor = processors.TemplateProcessing(
        single=around, special_tokens=[("<bos>", BOS), ("<eos>", EOS)])
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<bos>", eos_token="<eos>")


def ids(text: str) -> tuple[int, ...]:
    return tuple(LETTERS.index(c) for c in text)


def text(read: Sequence[int]) -> str:
    return "".join(LETTERS[i] if i < len(LETTERS) else {BOS: "^", EOS: "$"}.get(i, "#") for i in read)


def repeats(read: Sequence[int]) -> Iterator[np.ndarray]:
    """A model that expects the last character again, in pieces of three rows."""
    logits = np.zeros((len(read), VOCAB), np.float32)
    logits[np.arange(len(read)), read] = 5
    yield from np.array_split(logits, range(3, len(read), 3))


@pytest.mark.parametrize("around", ["$A", "<bos> $A", "<bos> $A <eos>", "$A <eos>"])
@pytest.mark.parametrize(("endings", "likeliest"), [
    (("abcd", "aaaa"), 1),
    (("aaaa", "abcd"), 0),
    (("ab", "abababababab"), 1),  # no letter is expected in either, and the space before them costs, too
    (("aabb", "ab"), 0),  # the sum of the shorter one is larger, by letter it is not
])
def test_by_letter(endings: tuple[str, ...], likeliest: int, around: str) -> None:
    for answer in range(2):
        asked = question(Item("a", endings, answer), letters(around), 64)
        (right,) = answers(repeats, [asked], lambda said: None)
        assert right == (answer == likeliest)


@pytest.mark.parametrize("around", ["<bos> $A", "<bos> $A <eos>"])
def test_opens_as_text_does_and_ends_where_the_ending_does(around: str) -> None:
    """An end token behind the ending would be scored as its last one, whatever the ending is."""
    [ending] = question(Item("by", ("hand",), 0), letters(around), 64).endings
    assert ending == Ending((BOS, *ids("by hand")), 5, 4)


def test_an_ending_that_merges_with_the_context() -> None:
    """`b` and the space are one token, which the context alone does not have: it is the ending's."""
    [ending] = question(Item("ab", ("cd",), 0), letters(merges=[("b", " ")]), 64).endings
    assert text(ending.ids) == "a#cd"
    assert ending.count == 3


@pytest.mark.parametrize(("around", "seen"), [
    ("$A", ["xxxend one", "xend three"]), ("<bos> $A", ["^xxend one", "^end three"])])
def test_a_long_context_loses_its_beginning(around: str, seen: list[str]) -> None:
    asked = question(Item("x" * 50 + "end", ("one", "three"), 0), letters(around), 10)
    assert [text(ending.ids) for ending in asked.endings] == seen
    assert [ending.count for ending in asked.endings] == [4, 6]


@pytest.mark.parametrize("around", ["$A", "<bos> $A"])
def test_an_ending_may_fill_all_but_one_token_of_the_context(around: str) -> None:
    item, tokenizer = Item("context", ("short", "nine char"), 1), letters(around)
    read = question(item, tokenizer, 11).endings[1]
    assert len(read.ids) == 11
    assert read.count == 10
    (right,) = answers(repeats, [question(item, tokenizer, 11)], lambda said: None)
    assert right in (True, False)
    with pytest.raises(EdgeForgeError, match=r"takes 10 tokens, which is more than context 10 has room for: "
                                             r"'nine char'\n.*target.context 11 or more"):
        question(item, tokenizer, 10)
