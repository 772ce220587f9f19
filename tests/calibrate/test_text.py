"""Calibration and evaluation text: the declared mixture, template tokens in it, nothing shared."""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
from jinja2 import TemplateError
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from edgeforge.calibrate import windows as text
from edgeforge.calibrate.overlap import hashes
from edgeforge.calibrate.sections import text_hash
from edgeforge.calibrate.template import Frame, template_ids
from edgeforge.calibrate.windows import pools, stream
from edgeforge.errors import CheckpointError, EdgeForgeError, RecipeError

Windows = list[np.ndarray]


def calibration_windows(*arguments: Any) -> Windows:
    return [window for _, window in text.calibration_windows(*arguments)]


def evaluation_windows(*arguments: Any) -> Windows:
    return [window for _, window in text.evaluation_windows(*arguments)]


def left(tokenizer: PreTrainedTokenizerFast, length: int, source: Path) -> Windows:
    """What a user's text holds for evaluation, read as `edgeforge eval` reads it."""
    return [w for (role, domain), part in pools(tokenizer, source).items() if role == "evaluation"
            for w in stream(tokenizer, length, domain, part, source)]


def shared(tokenizer: PreTrainedTokenizerFast, *sides: Windows) -> set[int]:
    """Hashes of the runs of words that stand on both sides."""
    frame = Frame.of(tokenizer)
    one, other = ({h for w in part for h in hashes(tokenizer, w, frame).tolist()} for part in sides)
    return one & other


def domains(*arguments: Any) -> list[str]:
    """Of windows long enough for the chat template's ids."""
    tokenizer, windows, *source = arguments
    return [domain for domain, _ in text.calibration_windows(tokenizer, 128, windows, *source)]


SYSTEM = "You are a helpful machine that answers in full sentences and never in riddles."
TEMPLATE = (
    "<|start|>system\n" + SYSTEM + "<|end|>\n"
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
)


def make_tokenizer(template: str | None, bos: bool = False) -> PreTrainedTokenizerFast:
    """A byte-level BPE of 1500 ids, trained on a few topics."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = ["<|start|>", "<|end|>", "<bos>"]
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([topics["specialnames"], topics["compound"]], trainer)
    if bos:
        bpe.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 2)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|end|>", bos_token="<bos>", model_max_length=128
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|start|>"]})
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="module")
def chatty() -> PreTrainedTokenizerFast:
    return make_tokenizer(TEMPLATE)


@pytest.fixture(scope="module")
def plain() -> PreTrainedTokenizerFast:
    return make_tokenizer(None)


@pytest.fixture
def own_text(tmp_path: Path) -> Path:
    """60 paragraphs of about 600 characters, no two alike."""
    file = tmp_path / "own.txt"
    words = ("meadow", "river", "lantern", "copper", "violet", "harbour", "thistle")
    paragraphs = (
        " ".join(f"{words[(i * j) % 7]}{i}{words[(i + j) % 7]}" for j in range(1, 40)) for i in range(60)
    )
    file.write_text("\n\n".join(paragraphs), encoding="utf-8")
    return file


class TestWindows:
    @pytest.mark.parametrize("make", [calibration_windows, evaluation_windows])
    def test_shape_type_and_range(self, chatty: PreTrainedTokenizerFast, make: object) -> None:
        windows = make(chatty, 96, 9)  # type: ignore[operator]
        assert [w.shape for w in windows] == [(96,)] * 9
        assert {w.dtype for w in windows} == {np.dtype(np.int64)}
        assert all(w.min() >= 0 and w.max() < len(chatty) for w in windows)
        assert len({w.tobytes() for w in windows}) == 9

    def test_a_window_is_the_same_however_many_are_asked_for(self, chatty: PreTrainedTokenizerFast) -> None:
        few, many = calibration_windows(chatty, 64, 5), calibration_windows(chatty, 64, 40)
        assert all(np.array_equal(a, b) for a, b in zip(few, many, strict=False))

    def test_none(self, chatty: PreTrainedTokenizerFast) -> None:
        assert calibration_windows(chatty, 64, 0) == []

    def test_mixture(
        self, chatty: PreTrainedTokenizerFast, plain: PreTrainedTokenizerFast, own_text: Path
    ) -> None:
        assert Counter(domains(chatty, 16)) == {"chat": 4, "prose": 8, "code": 4}
        assert Counter(domains(plain, 12)) == {"prose": 8, "code": 4}
        assert Counter(domains(chatty, 12, own_text)) == {"chat": 4, "text": 8}
        assert set(domains(plain, 12, own_text)) == {"text"}

    def test_opening_tokens_lead_every_window(self) -> None:
        windows = calibration_windows(make_tokenizer(None, bos=True), 64, 6)
        assert all(w[0] == 2 and 2 not in w[1:] for w in windows)

    def test_plain_text_reads_as_in_the_source(self, plain: PreTrainedTokenizerFast) -> None:
        whole = pools(plain, None)["calibration", "prose"][0].text
        assert whole.startswith(plain.decode(calibration_windows(plain, 64, 1)[0]))

    def test_too_little_text_says_how_much_there_is(self, chatty: PreTrainedTokenizerFast) -> None:
        with pytest.raises(RecipeError, match=r"holds \d+ calibration windows of 4000 tokens, and then no more"):
            calibration_windows(chatty, 4000, 100)

    def test_no_room_behind_the_opening(self) -> None:
        with pytest.raises(RecipeError, match="no room"):
            calibration_windows(make_tokenizer(None, bos=True), 1, 1)


class TestTemplate:
    def test_only_chat_windows_hold_its_special_ids(self, chatty: PreTrainedTokenizerFast) -> None:
        special = template_ids(chatty)
        assert special == {0, 1}
        for make in (calibration_windows, evaluation_windows):
            windows = make(chatty, 128, 16)
            for domain, window in zip(domains(chatty, 16), windows, strict=True):
                assert bool(special.intersection(window.tolist())) == (domain == "chat")

    def test_a_single_window_is_a_conversation(self, chatty: PreTrainedTokenizerFast) -> None:
        text = chatty.decode(calibration_windows(chatty, 200, 1)[0])
        assert text.startswith(f"<|start|>system\n{SYSTEM}<|end|>\n<|start|>user\n")
        assert "<|start|>assistant\n" in text

    def test_windows_that_end_before_the_template_does(self) -> None:
        closes_late = "{% for m in messages %}{{ m.content }}{% endfor %}<|start|>"
        with pytest.raises(RecipeError, match=r"<\|start\|>"):
            calibration_windows(make_tokenizer(closes_late), 16, 8)

    def test_does_not_change_with_the_date(self) -> None:
        windows = calibration_windows(make_tokenizer("{{ strftime_now('%Y-%m-%d') }}" + TEMPLATE), 128, 1)
        assert make_tokenizer(None).decode(windows[0]).startswith("2025-01-01<|start|>")

    def test_no_warning_about_length(
        self, chatty: PreTrainedTokenizerFast, capfd: pytest.CaptureFixture[str]
    ) -> None:
        calibration_windows(chatty, 4 * chatty.model_max_length, 4)
        assert capfd.readouterr() == ("", "")

    def test_that_refuses_is_the_checkpoint_s_fault(self) -> None:
        tokenizer = make_tokenizer("{{ raise_exception('system turn first') }}")
        with pytest.raises(CheckpointError, match="system turn first") as caught:
            calibration_windows(tokenizer, 64, 1)
        assert isinstance(caught.value.__cause__, TemplateError)


class TestDisjoint:
    def test_topics_nest(self) -> None:
        """Why topic keys don't do: one topic's paragraphs all stand in another one."""
        inner = [p for p in topics["customization"].split("\n\n") if len(p) > 200]
        assert all(p in topics["specialnames"] for p in inner)

    def test_no_paragraph_is_used_twice(self, chatty: PreTrainedTokenizerFast) -> None:
        parts = pools(chatty, None)
        assert {domain for _, domain in parts} == {"prose", "chat", "code"}
        hashes = [text_hash(p) for part in parts.values() for s in part for p in s.paragraphs]
        assert len(hashes) == len(set(hashes)) > 2000

    def test_each_role_gets_its_share(self, chatty: PreTrainedTokenizerFast) -> None:
        size = {key: sum(len(s.text) for s in part) for key, part in pools(chatty, None).items()}
        for domain in ("prose", "chat", "code"):
            assert 0.7 < size["evaluation", domain] / size["calibration", domain] < 1.4

    def test_no_run_of_tokens_is_shared(self, chatty: PreTrainedTokenizerFast) -> None:
        calibration = calibration_windows(chatty, 256, 200)
        evaluation = evaluation_windows(chatty, 256, 200)
        assert len(shared(chatty, calibration, calibration)) > 10_000
        assert len(shared(chatty, evaluation, evaluation)) > 10_000
        assert shared(chatty, evaluation, calibration) == set()

    def test_hash_is_blind_to_layout(self) -> None:
        assert text_hash("  One\n   two") == text_hash("one two") != text_hash("onetwo")


class TestOwnFile:
    def test_replaces_the_default(self, chatty: PreTrainedTokenizerFast, own_text: Path) -> None:
        text = own_text.read_text(encoding="utf-8")
        long, evaluation = calibration_windows(chatty, 400, 8, own_text), left(chatty, 400, own_text)
        assert shared(chatty, evaluation, evaluation)
        assert shared(chatty, evaluation, long) == set()
        calibration = calibration_windows(chatty, 128, 12, own_text)
        for domain, window in zip(domains(chatty, 12, own_text), calibration, strict=True):
            decoded = chatty.decode(window)
            assert (decoded.strip().split("\n\n")[0] in text) == (domain == "text")

    def test_questions_name_the_paragraph(self, chatty: PreTrainedTokenizerFast, own_text: Path) -> None:
        window = chatty.decode(calibration_windows(chatty, 300, 1, own_text)[0])
        question, answer = window.split("<|start|>user\n")[1].split("<|end|>\n<|start|>assistant\n")[:2]
        assert " ".join(answer.split()[:6]) in question

    def test_a_heading_goes_with_the_paragraph_after_it(
        self, chatty: PreTrainedTokenizerFast, own_text: Path
    ) -> None:
        paragraphs = own_text.read_text().split("\n\n")
        own_text.write_text("\n\n".join(f"Heading {i}\n\n{p}" for i, p in enumerate(paragraphs)))
        for window in calibration_windows(chatty, 400, 4, own_text)[::3]:
            answers = chatty.decode(window).split("<|start|>assistant\n")[1:]
            assert all(a.startswith("Heading ") and len(a) > 80 for a in answers)

    def test_without_blank_lines(self, plain: PreTrainedTokenizerFast, own_text: Path) -> None:
        own_text.write_text(own_text.read_text().replace("\n\n", "\n"))
        assert len(calibration_windows(plain, 64, 4, own_text)) == 4
        assert len(left(plain, 64, own_text)) >= 4

    def test_windows_line_ends_and_byte_order_mark(
        self, plain: PreTrainedTokenizerFast, own_text: Path, tmp_path: Path
    ) -> None:
        other = tmp_path / "other.txt"
        other.write_bytes(b"\xef\xbb\xbf" + own_text.read_bytes().replace(b"\n", b"\r\n"))
        pairs = zip(
            calibration_windows(plain, 64, 4, own_text), calibration_windows(plain, 64, 4, other), strict=True
        )
        assert all(np.array_equal(a, b) for a, b in pairs)

    def test_missing(self, plain: PreTrainedTokenizerFast, tmp_path: Path) -> None:
        with pytest.raises(RecipeError, match=r"nowhere\.txt"):
            calibration_windows(plain, 64, 1, tmp_path / "nowhere.txt")

    def test_not_utf8(self, plain: PreTrainedTokenizerFast, own_text: Path) -> None:
        own_text.write_bytes(b"caf\xe9 " * 10)
        with pytest.raises(RecipeError, match="byte 3 is 0xe9"):
            calibration_windows(plain, 64, 1, own_text)

    def test_too_short(self, plain: PreTrainedTokenizerFast, own_text: Path) -> None:
        own_text.write_text("One short paragraph.")
        with pytest.raises(RecipeError, match="holds too little text for one calibration window of 64 tokens; 1 are"):
            calibration_windows(plain, 64, 1, own_text)


def paragraphs(count: int) -> str:
    """Each long enough to be a section of its own, no two alike."""
    return "\n\n".join(" ".join(f"word{i}x{j}" for j in range(450)) for i in range(count))


class TestShortFile:
    """It was refused for lacking "chat", however few windows were asked for."""

    @pytest.mark.parametrize("sections", [1, 2])
    def test_all_of_it_is_text(self, chatty: PreTrainedTokenizerFast, own_text: Path, sections: int) -> None:
        own_text.write_text(paragraphs(sections))
        whole = own_text.read_text()
        held = len(chatty(whole, verbose=False)["input_ids"]) // 64
        made = text.calibration_windows(chatty, 64, held, own_text)
        assert {domain for domain, _ in made} == {"text"}
        assert left(chatty, 64, own_text) == []

    def test_chat_that_would_fill_no_window_is_text(self, chatty: PreTrainedTokenizerFast, own_text: Path) -> None:
        own_text.write_text(paragraphs(12))
        tokens = len(chatty(paragraphs(1), verbose=False)["input_ids"])
        assert domains(chatty, 6, own_text) == 2 * ["chat", "text", "text"]
        made = text.calibration_windows(chatty, 3 * tokens, 1, own_text)
        assert [domain for domain, _ in made] == ["text"]
        assert shared(chatty, [made[0][1]], left(chatty, 128, own_text)) == set()

    def test_calibration_gets_more_of_a_longer_text_and_shares_none(
        self, chatty: PreTrainedTokenizerFast, own_text: Path
    ) -> None:
        given = []
        for sections in range(1, 20):
            own_text.write_text(paragraphs(sections))
            made = pools(chatty, own_text)
            roles = {role: [p for (r, _), part in made.items() if r == role for s in part for p in s.paragraphs]
                     for role in ("calibration", "evaluation")}
            assert set(roles["calibration"]).isdisjoint(roles["evaluation"])
            assert sum(map(len, roles.values())) == sections
            given.append(len(roles["calibration"]))
        assert given == [1, 2, 3, 4, 4, 4, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10]

    @pytest.mark.parametrize("sections", [1, 3, 6, 12])
    def test_what_the_message_says_it_holds_it_gives(
        self, chatty: PreTrainedTokenizerFast, own_text: Path, sections: int
    ) -> None:
        own_text.write_text(paragraphs(sections))
        with pytest.raises(RecipeError, match=r"own\.txt holds (\d+) calibration windows of 128 tokens, and then no "
                                              r"more (text|chat); 4000 are asked for") as caught:
            calibration_windows(chatty, 128, 4000, own_text)
        held = int(caught.value.message.split(" holds ")[1].split()[0])
        assert caught.value.hint == (f"set calibrate.windows to {held}, or calibrate.tokens to less than 128, "
                                     "or name a longer text (calibrate.text)")
        assert len(calibration_windows(chatty, 128, held, own_text)) == held
        with pytest.raises(RecipeError, match=f"holds {held} cal.*; {held + 1} are"):
            calibration_windows(chatty, 128, held + 1, own_text)

    def test_the_gates_text_is_no_choice(self, chatty: PreTrainedTokenizerFast) -> None:
        with pytest.raises(RecipeError, match="the default text holds") as caught:
            evaluation_windows(chatty, 4000, 4000)
        assert re.fullmatch(r"set gates.windows to \d+, or target.context to less than 4000",
                            caught.value.hint)

    @pytest.mark.parametrize(("name", "content"), [
        ("own.txt", ""), ("own.txt", " \n\n\t\n"), ("own.jsonl", "\n"), ("own.jsonl", '{"text": " "}')])
    def test_nothing_at_all(
        self, plain: PreTrainedTokenizerFast, tmp_path: Path, name: str, content: str
    ) -> None:
        (tmp_path / name).write_text(content)
        with pytest.raises(RecipeError, match="holds no text"):
            calibration_windows(plain, 64, 1, tmp_path / name)


def test_python_without_sources(plain: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(EdgeForgeError, match="no source file for the standard module"):
        calibration_windows(plain, 64, 2)


WORDS = re.findall(r"\w+", "The quick brown fox jumps over the lazy dog and runs home before the rain falls again")


class TestHashes:
    def found(self, tokenizer: PreTrainedTokenizerFast, text: str) -> set[int]:
        ids = np.asarray(tokenizer(text, add_special_tokens=False)["input_ids"], np.int64)
        return set(hashes(tokenizer, ids, Frame.of(tokenizer)).tolist())

    def test_one_for_each_run_of_13_words(self, plain: PreTrainedTokenizerFast) -> None:
        assert len(self.found(plain, " ".join(WORDS))) == len(WORDS) - 12
        assert self.found(plain, " ".join(WORDS[:12])) == set()

    def test_are_blind_to_case_layout_and_punctuation(self, plain: PreTrainedTokenizerFast) -> None:
        other = "\n   ".join(w.upper() + "," for w in WORDS)
        assert self.found(plain, other) == self.found(plain, " ".join(WORDS))

    def test_differ_when_a_word_does(self, plain: PreTrainedTokenizerFast) -> None:
        other = [*WORDS[:8], "cat", *WORDS[9:]]
        assert self.found(plain, " ".join(other)).isdisjoint(self.found(plain, " ".join(WORDS)))

    def test_a_script_without_spaces_counts_characters(self, plain: PreTrainedTokenizerFast) -> None:
        assert len(self.found(plain, "从前海边住着一个老渔夫有一天早上")) == 16 - 12

    def test_a_system_prompt_of_the_template_is_not_text(self, chatty: PreTrainedTokenizerFast) -> None:
        assert len(SYSTEM.split()) > 13
        turns = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]
        twice = 2 * chatty.apply_chat_template(turns, tokenize=False)
        assert self.found(chatty, twice) == set()
        assert len(self.found(chatty, twice + " ".join(WORDS))) == len(WORDS) - 12


class TestJsonLines:
    """A user's data set."""

    @staticmethod
    def write(file: Path, *lines: object) -> Path:
        file.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines), encoding="utf-8")
        return file

    @staticmethod
    def conversation(number: int) -> dict[str, Any]:
        answer = " ".join(f"word{number}x{i}" for i in range(40))
        return {"messages": [{"role": "user", "content": f"Question {number}?"},
                             {"role": "assistant", "content": answer}], "id": number}

    def test_texts_are_paragraphs(
        self, plain: PreTrainedTokenizerFast, own_text: Path, tmp_path: Path
    ) -> None:
        paragraphs = own_text.read_text(encoding="utf-8").split("\n\n")
        file = self.write(tmp_path / "own.jsonl", *({"text": p} for p in paragraphs))
        assert all(np.array_equal(a, b) for a, b in zip(
            calibration_windows(plain, 64, 8, own_text), calibration_windows(plain, 64, 8, file), strict=True))

    def test_conversations_go_through_the_template(
        self, chatty: PreTrainedTokenizerFast, tmp_path: Path
    ) -> None:
        every = [self.conversation(i) for i in range(20)]
        file = self.write(tmp_path / "own.jsonl", *every, "", every[3])
        made = text.calibration_windows(chatty, 400, 3, file)
        assert [domain for domain, _ in made] == ["chat"] * 3
        known = {chatty.apply_chat_template(c["messages"], tokenize=False) for c in every}
        for _, window in made:
            assert any(chatty.decode(window).startswith(one[:600]) for one in known)
        evaluation = left(chatty, 400, file)
        assert shared(chatty, evaluation, evaluation)
        assert shared(chatty, evaluation, [w for _, w in made]) == set()

    def test_both_mix(self, chatty: PreTrainedTokenizerFast, own_text: Path, tmp_path: Path) -> None:
        paragraphs = own_text.read_text(encoding="utf-8").split("\n\n")
        lines = [*({"text": p} for p in paragraphs), *(self.conversation(i) for i in range(20))]
        assert domains(chatty, 6, self.write(tmp_path / "own.jsonl", *lines)) == 2 * ["chat", "text", "text"]

    @pytest.mark.parametrize(("line", "said"), [
        ("{", "line 2 is not JSON"), ('{"text": "\\ud83d"}', "line 2 is not JSON.*surrogates not allowed"),
        ("[1]", "line 2 is neither"), ('{"txt": "x"}', "line 2 is neither"),
        ('{"messages": []}', "line 2 is neither"), ('{"messages": [{"role": "user", "content": "x"}]}', "line 2 is"),
        ('{"messages": [{"role": "assistant", "content": 5}]}', "line 2 is neither"),
    ])
    def test_a_line_that_is_neither(
        self, plain: PreTrainedTokenizerFast, tmp_path: Path, line: str, said: str
    ) -> None:
        with pytest.raises(RecipeError, match=said):
            calibration_windows(plain, 64, 1, self.write(tmp_path / "own.jsonl", {"text": "fine"}, line))

    def test_conversations_without_a_template(self, plain: PreTrainedTokenizerFast, tmp_path: Path) -> None:
        with pytest.raises(RecipeError, match="has no chat template"):
            calibration_windows(plain, 64, 1, self.write(tmp_path / "own.jsonl", self.conversation(1)))

    def test_a_conversation_that_the_template_refuses(self, tmp_path: Path) -> None:
        template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TEMPLATE
        with_system = self.conversation(1)
        with_system["messages"].insert(0, {"role": "system", "content": "Be brief."})
        file = self.write(tmp_path / "own.jsonl", with_system)
        with pytest.raises(RecipeError, match="line 1: the model's chat template refuses it.*no system"):
            calibration_windows(make_tokenizer(template), 64, 1, file)
