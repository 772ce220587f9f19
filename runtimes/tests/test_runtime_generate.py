from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edgeforge_runtime.errors import ContextOverflow
from edgeforge_runtime.generate import Result, Text, generate
from edgeforge_runtime.sampler import Sampler
from edgeforge_runtime.session import Session
from edgeforge_runtime.text import TextCodec
from tiny_models import VOCAB, Tiny
from tiny_tokenizers import byte_level, write

PROMPT = [10, 20, 30, 40, 50]
CL = 32


@pytest.fixture
def codec(tmp_path: Path) -> TextCodec:
    return TextCodec(write(tmp_path / "tokenizer", byte_level(), eos_token=None))


def answer(
    session: Session, codec: TextCodec, prompt: list[int], most: int, **sampler: Any
) -> tuple[str, Result]:
    *pieces, result = generate(session, codec, prompt, Sampler(**sampler), most)
    assert isinstance(result, Result)
    assert all(isinstance(p, Text) and p.text for p in pieces)
    return "".join(p.text for p in pieces if isinstance(p, Text)), result


def greedy(tiny: Tiny, prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(np.argmax(tiny.reference(ids)[-1])))
    return ids[len(prompt) :]


def test_greedy_equals_the_reference_loop(tmp_path: Path, codec: TextCodec) -> None:
    tiny = Tiny()
    with Session.open(tiny.write(tmp_path, eos=())) as session:
        text, result = answer(session, codec, PROMPT, 12)
    assert list(result.tokens) == greedy(tiny, PROMPT, 12)
    assert text == codec.decode(PROMPT + list(result.tokens))[len(codec.decode(PROMPT)) :]
    assert (result.stop, result.prompt_tokens, result.reused_tokens) == ("max_tokens", 5, 0)
    assert result.restrides == 1
    assert result.prefill_seconds > 0
    assert result.decode_tokens_per_second is not None


def test_one_token_has_no_rate(tmp_path: Path, codec: TextCodec) -> None:
    with Session.open(Tiny().write(tmp_path, eos=())) as session:
        _, result = answer(session, codec, PROMPT, 1)
        assert (len(result.tokens), result.stop, result.decode_tokens_per_second) == (1, "max_tokens", None)
        with pytest.raises(ValueError, match="at least 1"):
            list(generate(session, codec, PROMPT, Sampler(), 0))


def test_model_and_tokenizer_end_ids_both_stop(tmp_path: Path) -> None:
    tiny = Tiny()
    told = greedy(tiny, PROMPT, 20)
    late = next(i for i in range(3, 20) if told[i] not in told[:i])
    folder = write(tmp_path / "t", byte_level())
    with Session.open(tiny.write(tmp_path, eos=(told[late],))) as session:
        text, result = answer(session, TextCodec(folder), PROMPT, 20)
        assert list(result.tokens) == told[: late + 1]
        assert result.stop == "eos"
        codec = TextCodec(folder)
        assert text == codec.decode(PROMPT + told[:late])[len(codec.decode(PROMPT)) :]
        (folder / "generation_config.json").write_text(f'{{"eos_token_id": [{told[1]}]}}')
        _, result = answer(session, TextCodec(folder), PROMPT, 20)
        assert (result.tokens[-1], result.stop) == (told[1], "eos")


@pytest.mark.parametrize(("length", "said"), [(30, 3), (31, 2), (32, 1)])
def test_the_context_end_is_a_reason(tmp_path: Path, codec: TextCodec, length: int, said: int) -> None:
    """All `context` tokens can be read, so the token behind the last of them can still be said."""
    with Session.open(Tiny().write(tmp_path, eos=())) as session:
        _, result = answer(session, codec, [5] * length, 100)
        assert (len(result.tokens), result.stop) == (said, "context")
        with pytest.raises(ContextOverflow):
            answer(session, codec, [5] * 33, 1)


def test_max_tokens_at_the_context_end(tmp_path: Path, codec: TextCodec) -> None:
    with Session.open(Tiny().write(tmp_path, eos=())) as session:
        assert answer(session, codec, [5] * 31, 2)[1].stop == "max_tokens"


def test_ids_beyond_the_tokenizer_are_never_said(tmp_path: Path, codec: TextCodec) -> None:
    """The model knows 90 ids, this tokenizer 40."""

    codec.size = 40
    with Session.open(Tiny().write(tmp_path, eos=())) as session:
        _, result = answer(session, codec, PROMPT, 25, temperature=3.0)
    assert len(result.tokens) == 25
    assert max(result.tokens) < 40 < VOCAB


def test_second_turn_reuses_what_was_read(tmp_path: Path, codec: TextCodec) -> None:
    tiny = Tiny()
    with Session.open(tiny.write(tmp_path, eos=())) as session:
        _, first = answer(session, codec, PROMPT, 4)
        again = [*PROMPT, *first.tokens, 7, 8]
        _, second = answer(session, codec, again, 4)
        assert second.reused_tokens == 8, "the last token of a turn was said, not read"
        assert list(second.tokens) == greedy(tiny, again, 4)
