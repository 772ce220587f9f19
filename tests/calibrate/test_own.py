"""The model's own text: what it samples is what lands in the windows, the same every time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from edgeforge import checkpoint
from edgeforge.calibrate import own
from edgeforge.checkpoint import open_checkpoint

TOKENS = 96


@pytest.fixture(scope="module")
def model(checkpoint_folder: Path) -> Any:
    return checkpoint.load_model(open_checkpoint(checkpoint_folder))


@pytest.fixture
def tokenizer(checkpoint_folder: Path) -> PreTrainedTokenizerBase:
    return checkpoint.load_tokenizer(open_checkpoint(checkpoint_folder))


def echo(prompts: list[list[int]], new: int) -> list[list[int]]:
    """Ends every text after a quarter of what it was asked for."""
    return [p + [300] * (new // 4) for p in prompts]


def test_windows_are_own_and_languages_in_turn(model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    made = own.windows(tokenizer, own.sampler(model, tokenizer), TOKENS, 5)
    assert [domain for domain, _ in made] == ["own", "languages", "own", "languages", "own"]
    assert all(w.shape == (TOKENS,) and w.dtype == np.int64 for _, w in made)
    assert len({w.tobytes() for _, w in made}) == 5


def test_twice_the_same(model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    first, again = (own.windows(tokenizer, own.sampler(model, tokenizer), TOKENS, 4) for _ in range(2))
    assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(first, again, strict=True))


def test_a_sample_is_what_the_model_finds_likely(model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Rows are padded on the left: with positions or mask off, tokens outside the nucleus would come."""
    import torch

    prompts = [own._prompt(tokenizer, [], p) for p in own.ENGLISH[:3]]
    assert len({len(p) for p in prompts}) == 3
    with torch.no_grad():
        for row, prompt in zip(own.sampler(model, tokenizer)(prompts, 24), prompts, strict=True):
            assert row[:len(prompt)] == prompt
            logits = model(torch.tensor([row])).logits[0, len(prompt) - 1: -1].double() / own.TEMPERATURE
            order = logits.softmax(-1).sort(descending=True)
            before = order.values.cumsum(-1) - order.values
            for step, token in enumerate(row[len(prompt):]):
                rank = int((order.indices[step] == token).nonzero())
                assert before[step, rank] < own.TOP_P + 1e-3 or token in (0, 2)


def test_nothing_stands_behind_an_end_and_none_comes_early(model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    prompts = [own._prompt(tokenizer, [], p) for p in (*own.ENGLISH, *own.OTHER_LANGUAGES)]
    for row, prompt in zip(own.sampler(model, tokenizer)(prompts, 64), prompts, strict=True):
        written = row[len(prompt):]
        assert 32 <= len(written) <= 64
        assert 2 not in written[:-1]


def test_texts_that_end_early_are_followed_by_others(tokenizer: PreTrainedTokenizerBase) -> None:
    asked: Counter[tuple[int, ...]] = Counter()

    def sample(prompts: list[list[int]], new: int) -> list[list[int]]:
        asked.update(tuple(p) for p in prompts)
        return echo(prompts, new)

    assert len(own.windows(tokenizer, sample, 256, 6)) == 6
    assert max(asked.values()) == 1


def test_without_a_template_the_model_goes_on_with_an_opening(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = None
    (_, window), = own.windows(tokenizer, echo, TOKENS, 1)
    assert tokenizer.decode(window).startswith(own.ENGLISH[0].opening[:40])


def test_with_one_it_answers(tokenizer: PreTrainedTokenizerBase) -> None:
    (_, window), = own.windows(tokenizer, echo, TOKENS, 1)
    assert tokenizer.decode(window).startswith(f"<|im_start|>user\n{own.ENGLISH[0].ask[:40]}")


def test_prompts_are_all_different() -> None:
    every = [t for p in (*own.ENGLISH, *own.OTHER_LANGUAGES) for t in (p.ask, p.opening)]
    assert len(set(every)) == len(every) == 64
