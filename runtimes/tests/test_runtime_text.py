from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from edgeforge_runtime.errors import TextError
from edgeforge_runtime.template import ChatTemplate
from edgeforge_runtime.text import Detokenizer, TextCodec
from hypothesis import assume, given
from hypothesis import strategies as st
from tiny_tokenizers import END, byte_fallback, byte_level, write
from tokenizers import Tokenizer

MAKERS = {"byte_level": byte_level, "byte_fallback": byte_fallback}
SAMPLES = [
    "hello",
    "a b  c",
    " lead",
    "你好，世界",
    "👍🏽 and 🇩🇪",
    "naïve\n\ttab",
    "e\u0301",
    "\ufffd",
    "ab 你👍",
]


@pytest.fixture(params=sorted(MAKERS))
def codec(request: pytest.FixtureRequest, tmp_path: Path) -> TextCodec:
    return TextCodec(write(tmp_path / "tokenizer", MAKERS[request.param]()))


def stream(codec: TextCodec, prompt: list[int], ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(codec, prompt)
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


@pytest.mark.parametrize("text", SAMPLES)
def test_streaming_equals_decoding_at_once(codec: TextCodec, text: str) -> None:
    ids = codec.encode(text)
    pieces = stream(codec, [], ids)
    assert "".join(pieces) == codec.decode(ids)
    assert pieces[-1] in ("", "\ufffd")


@pytest.mark.parametrize("text", ["👍", "你"])
def test_a_character_comes_whole(codec: TextCodec, text: str) -> None:
    ids = codec.encode(text)[-len(text.encode()) :]
    pieces = stream(codec, [], ids)
    assert pieces[: len(ids)] == [""] * (len(ids) - 1) + [text]


def test_a_cut_character_is_told_at_the_end(codec: TextCodec) -> None:
    ids = codec.encode("a👍")[:-1]
    pieces = stream(codec, [], ids)
    assert "".join(pieces) == codec.decode(ids)
    assert "\ufffd" in pieces[-1]
    assert not any("\ufffd" in p for p in pieces[:-1])


def test_the_space_between_prompt_and_answer_is_kept(codec: TextCodec) -> None:
    whole = codec.encode("a b c")
    cut = len(codec.encode("a b"))
    assert "".join(stream(codec, whole[:cut], whole[cut:])) == " c"


def test_answers_behind_cjk_bytes_are_whole(codec: TextCodec) -> None:
    """Byte fallback decodes a run of bytes as one: a window cut inside it would never recover."""
    whole = codec.encode("你好世界你好")
    cut = len(codec.encode("你好世界"))
    assert stream(codec, whole[:cut], whole[cut:]) == ["", "", "你", "", "", "好", ""]


def test_special_tokens_are_not_text(codec: TextCodec) -> None:
    a, b = codec.encode("a"), codec.encode(" b")
    assert "".join(stream(codec, [], [1, *a, 2, *b[-2:]])).replace(" ", "") == "ab"


@given(st.lists(st.integers(0, 258), max_size=24), st.lists(st.integers(3, 258), max_size=6))
def test_any_bytes_stream_to_their_text(ids: list[int], prompt: list[int]) -> None:
    codec = _CODECS["byte_level"]
    head = codec.decode(prompt)
    assume(not head.endswith("\ufffd"))  # else the prompt itself ends inside a character
    assert head + "".join(stream(codec, prompt, ids)) == codec.decode([*prompt, *ids])


@given(st.text(st.sampled_from("abcx 你👍é"), max_size=12))
def test_any_text_streams_through_byte_fallback(text: str) -> None:
    codec = _CODECS["byte_fallback"]
    ids = codec.encode(text)
    assert "".join(stream(codec, [], ids)) == codec.decode(ids)


def test_end_ids_are_a_union(tmp_path: Path) -> None:
    folder = write(tmp_path / "t", byte_level(), eos_token={"content": END})
    assert TextCodec(folder).eos == {2}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 1]}))
    assert TextCodec(folder).eos == {0, 1, 2}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    assert TextCodec(folder).eos == {1, 2}


def test_chat_ends_where_the_assistant_begins(codec: TextCodec) -> None:
    ids = codec.encode_chat([{"role": "user", "content": "abc"}])
    assert ids[0] == 1
    assert ids.count(1) == 2
    assert ids.count(2) == 1
    assert codec.decode(ids).split() == ["user", "abc", "assistant"]


def test_template_file_wins_over_config(tmp_path: Path) -> None:
    folder = write(tmp_path / "t", byte_level())
    (folder / "chat_template.jinja").write_text("X{{ messages[0].content }}", encoding="utf-8")
    codec = TextCodec(folder)
    assert codec.decode(codec.encode_chat([{"role": "user", "content": "y"}])) == "Xy"


def test_named_templates(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    codec = TextCodec(write(tmp_path / "t", byte_level(), chat_template=named))
    assert codec.decode(codec.encode_chat([])) == "D"


def test_no_template_is_named(tmp_path: Path) -> None:
    codec = TextCodec(write(tmp_path / "t", byte_level(), chat_template=None))
    with pytest.raises(TextError, match="no chat template"):
        codec.encode_chat([])


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("{{ {'a': 'é<'} | tojson }}", '{"a": "é<"}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ bos_token }}{% for m in messages %}{{ m.content }}{% break %}{% endfor %}", "<s>hi"),
        ("{% if tools is none %}n{% endif %}", "n"),
        ("  {% if true %}\n  x\n  {% endif %}\n", "  x\n"),
        ("{% generation %}{{ messages[0]['content'] }}{% endgeneration %}", "hi"),
        ("{% if messages[0].name is defined %}never{% endif %}", ""),
        ("{% set ns = namespace(x=1) %}{% set ns.x = 2 %}{{ ns.x }}", "2"),
    ],
)
def test_templates_render_like_transformers(source: str, wanted: str) -> None:
    messages = [{"role": "user", "content": "hi", "name": None}]
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(messages) == wanted


def test_template_knows_the_date() -> None:
    assert len(ChatTemplate("{{ strftime_now('%Y') }}", {}).render([])) == 4


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.append(1) }}", "failed"),
        ("{{ ''.__class__.__mro__ }}", "failed"),
        ("{{ messages[0].content.x.y }}", "failed"),
    ],
)
def test_templates_that_fail_or_reach_out_are_named(source: str, message: str) -> None:
    with pytest.raises(TextError, match=message):
        ChatTemplate(source, {}).render([{"role": "user", "content": "hi"}])


def test_a_template_that_does_not_compile_is_named() -> None:
    with pytest.raises(TextError, match="does not compile"):
        ChatTemplate("{% if %}", {})


def test_broken_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(TextError, match=r"tokenizer\.json is missing"):
        TextCodec(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TextError, match="is damaged"):
        TextCodec(tmp_path)
    write(tmp_path, byte_level())
    (tmp_path / "tokenizer_config.json").write_text("[1")
    with pytest.raises(TextError, match="cannot be read"):
        TextCodec(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer_config.json", '{"eos_token": {"id": 2}}', "names a special token"),
        ("tokenizer_config.json", '{"eos_token": "\\ud800"}', "names a special token"),
        ("tokenizer_config.json", "[" * 100_000, "nested too deeply"),
        ("tokenizer_config.json", '{"chat_template": "' + "{{" + "(" * 5000 + '"}', "does not compile"),
        ("tokenizer_config.json", '{"chat_template": "{{ ' + "9" * 5000 + ' }}"}', "does not compile"),
        ("generation_config.json", '{"eos_token_id": ["2"]}', "no token id"),
        ("generation_config.json", '{"eos_token_id": 2.5}', "no token id"),
        ("chat_template.jinja", b"{{ messages }}\xff", "cannot be read"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, file: str, content: str | bytes, message: str) -> None:
    write(tmp_path, byte_level())
    (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TextError, match=message):
        TextCodec(tmp_path)


def test_named_templates_without_names_are_no_template(tmp_path: Path) -> None:
    write(tmp_path, byte_level(), chat_template=[{"template": "x"}, 3, {"name": ["default"]}])
    assert TextCodec(tmp_path).template is None


class _Codec(TextCodec):
    """A codec over a tokenizer in memory, for properties that run a hundred times."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer: Any = tokenizer


_CODECS = {name: _Codec(make()) for name, make in MAKERS.items()}
