"""Text that the model writes itself, from short prompts of many kinds and languages.

Manuals and code are on every machine, novels and Chinese are not; the model has read all of them, and its own
samples hold what it knows in the proportions that it uses. (LLM-QAT, arXiv 2305.17888, generates data for the same
reason.) The windows are `own` (English) and `languages` in turn.

All rows are sampled in one batch with the model's KV cache, from the float model and a fixed seed: the same
machine, threads and versions give the same text.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeforge.calibrate import template
from edgeforge.calibrate.prompts import ENGLISH, OTHER_LANGUAGES, Prompt
from edgeforge.calibrate.sections import Domain
from edgeforge.calibrate.template import Window
from edgeforge.calibrate.windows import cut

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEMPERATURE, TOP_P, SEED = 0.8, 0.95, 20
_ROW = 256
"""most new tokens of a sample: more samples of half a window hold more kinds of text, and cost less time"""

Ids = list[int]
Sample = Callable[[list[Ids], int], list[Ids]]
"""prompts, and how many tokens to add to each at most; returns prompt and what was written, up to its end"""


def windows(tokenizer: PreTrainedTokenizerBase, sample: Sample, length: int, count: int) -> list[tuple[Domain, Window]]:
    """count windows int64 [length] of samples one after the other, cut, each behind the tokenizer's opening tokens.

    Args:
        sample: see `sampler`; called again only when samples ended early.
    """
    opening = template.opening(tokenizer)
    need = length - len(opening)
    plan: list[Domain] = list(itertools.islice(itertools.cycle(("own", "languages")), count))
    asked = {"own": itertools.cycle(ENGLISH), "languages": itertools.cycle(OTHER_LANGUAGES)}
    texts: dict[Domain, list[Ids]] = {domain: [] for domain in plan}
    new = min(length, _ROW)
    while rows := [domain for domain, have in texts.items()
                   for _ in range(-(-(plan.count(domain) * need - sum(map(len, have))) // new))]:
        prompts = [_prompt(tokenizer, opening, next(asked[domain])) for domain in rows]
        for domain, ids in zip(rows, sample(prompts, new), strict=True):
            # A template may write the opening itself.
            texts[domain].append(ids[len(opening):] if ids[:len(opening)] == opening else ids)
    streams = {domain: cut(opening, length, iter(have)) for domain, have in texts.items()}
    return [(domain, np.asarray(next(streams[domain]), np.int64)) for domain in plan]


def sampler(model: Any, tokenizer: PreTrainedTokenizerBase) -> Sample:
    """Samples from a float HuggingFace causal LM, whose generation config it replaces.

    At least half of the tokens asked for come before an end token may.
    """
    import torch
    from transformers import GenerationConfig

    given = getattr(model, "generation_config", None)
    ends = sorted({*_ids(getattr(given, "eos_token_id", None)), *_ids(model.config.eos_token_id),
                   *_ids(tokenizer.eos_token_id)})
    pad = next((i for i in (tokenizer.pad_token_id, *ends) if i is not None), 0)
    seeds = itertools.count(SEED)

    def sample(prompts: list[Ids], new: int) -> list[Ids]:
        model.generation_config = GenerationConfig(
            do_sample=True, temperature=TEMPERATURE, top_p=TOP_P, top_k=0, max_new_tokens=new,
            min_new_tokens=max(new // 2, 1), eos_token_id=ends or None, pad_token_id=pad)
        width = max(map(len, prompts))
        rows = torch.tensor([[pad] * (width - len(p)) + p for p in prompts])
        seen = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(next(seeds))
            made = model.generate(rows, attention_mask=seen)
        return [p + list(_until(ends, row)) for p, row in zip(prompts, made[:, width:].tolist(), strict=True)]

    return sample


def _prompt(tokenizer: PreTrainedTokenizerBase, opening: Ids, prompt: Prompt) -> Ids:
    if tokenizer.chat_template:
        return template.render(tokenizer, [("user", prompt.ask)], reply=True)
    return opening + template.plain_ids(tokenizer, prompt.opening)


def _until(ends: list[int], row: Ids) -> Iterator[int]:
    """Up to and with the first end token; behind it there is padding."""
    for i in row:
        yield i
        if i in ends:
            return


def _ids(value: int | list[int] | None) -> list[int]:
    return [] if value is None else [value] if isinstance(value, int) else list(value)
