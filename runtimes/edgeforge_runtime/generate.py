"""Answering a prompt: pieces of text while they come, then the account."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from .sampler import Sampler
from .session import Session
from .text import Detokenizer, TextCodec

Stop = Literal["eos", "max_tokens", "context"]


@dataclass(frozen=True)
class Text:
    """A piece of the answer: whole characters, never empty."""

    text: str


@dataclass(frozen=True)
class Result:
    """What an answer was and cost.

    tokens: everything sampled, an end id included.
    stop: an end id came ("eos"), the limit asked for ("max_tokens") or the context was used up ("context").
    prompt_tokens, reused_tokens: length of the prompt, and of its head that was still in the cache.
    prefill_seconds: until the first token could be sampled.
    decode_tokens_per_second: over all tokens but the first; None when there was only one.
    restrides: times that the cache moved for another graph width.
    """

    tokens: tuple[int, ...]
    stop: Stop
    prompt_tokens: int
    reused_tokens: int
    prefill_seconds: float
    decode_tokens_per_second: float | None
    restrides: int


def generate(
    session: Session, codec: TextCodec, prompt: Sequence[int], sampler: Sampler, max_tokens: int
) -> Iterator[Text | Result]:
    """Yields Text pieces and, last, one Result. What the session read before is reused where it fits.

    Args:
        max_tokens: most tokens to sample, at least 1.

    Raises:
        ContextOverflow, RunError: before the first piece, see Session.prompt.
        LogitsError: the graph gave NaN.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    ends = codec.eos | frozenset(session.model.eos)
    limit = min(session.model.vocab_size, codec.size)
    moved = session.restrides
    started = time.perf_counter()
    logits = session.prompt(prompt)
    reused = session.reused
    begun = time.perf_counter()
    stream = Detokenizer(codec, prompt)
    tokens: list[int] = []
    while True:
        tokens.append(sampler.choose(logits, limit))
        stop = _stop(tokens, ends, max_tokens, len(prompt), session.context)
        if stop != "eos" and (piece := stream.push(tokens[-1])):
            yield Text(piece)
        if stop is not None:
            break
        logits = session.step(tokens[-1])
    spent = time.perf_counter() - begun
    if piece := stream.flush():
        yield Text(piece)
    rate = (len(tokens) - 1) / spent if len(tokens) > 1 else None
    yield Result(tuple(tokens), stop, len(prompt), reused, begun - started, rate, session.restrides - moved)


def _stop(tokens: Sequence[int], ends: frozenset[int], most: int, prompt: int, context: int) -> Stop | None:
    if tokens[-1] in ends:
        return "eos"
    if len(tokens) == most:
        return "max_tokens"
    if prompt + len(tokens) > context:  # the token just sampled can be said, but not read
        return "context"
    return None
