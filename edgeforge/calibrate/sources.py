"""Where text is read: the Python standard library, and a user's own file. None of it is stored with EdgeForge.

The default text is on every machine that runs this (PSF licence): the prose of `pydoc_data.topics` and the source
of a few modules. It is that of the running Python: figures from two patch releases differ a little.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgeforge.calibrate.sections import SECTION_CHARS, Domain, Section, Turn, gather, split_paragraphs, text_hash
from edgeforge.errors import EdgeForgeError, RecipeError

JSONL = ".jsonl"
_CODE = ("argparse", "configparser", "csv", "difflib", "fractions", "heapq", "statistics", "tarfile", "textwrap")
_LINE = '{"text": "..."} or {"messages": [{"role": "user", "content": "..."}, ...]}'


def form(file: Path) -> str:
    """".jsonl" for a file that is read line by line, whatever its case; "" for one that is read as it is."""
    return JSONL if file.suffix.lower() == JSONL else ""


def builtin() -> list[Section]:
    """The sections of the default text, of kinds prose and code.

    Raises:
        EdgeForgeError: a Python that came without its sources.
    """
    return gather([*_topics(), *_modules()])


def read(file: Path) -> list[Section]:
    """The sections of a user's file: utf-8 text, or (.jsonl) one document or conversation a line.

    Kinds are text and chat. Special tokens that are spelled out in a text become their ids later.

    Raises:
        RecipeError: it cannot be read, holds nothing, or a line of a .jsonl is neither.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise RecipeError(f"{file} cannot be read: {error.strerror}", "check the path") from error
    except UnicodeDecodeError as error:
        raise RecipeError(
            f"{file} is not utf-8 text: byte {error.start} is {error.object[error.start]:#04x}",
            f"convert it (iconv -t utf-8; a table: {JSONL} with lines like {_LINE}), or name another file",
        ) from error
    found = _documents(file, text) if form(file) else gather(_paragraphs(text, ""))
    if not found:
        raise RecipeError(f"{file} holds no text", "name a file that holds some")
    return found


def _topics() -> Iterator[tuple[Domain, str, str]]:
    from pydoc_data.topics import topics

    # The longest first: a topic that lies inside another one then adds nothing but its narrower name.
    keys = sorted(topics, key=lambda key: (-len(topics[key]), key))
    narrowest = {text_hash(p): key for key in keys for p in split_paragraphs(topics[key])}
    for key in keys:
        for paragraph in split_paragraphs(topics[key]):
            yield "prose", f"{narrowest[text_hash(paragraph)].replace('-', ' ')} in Python", paragraph


def _modules() -> Iterator[tuple[Domain, str, str]]:
    for name in _CODE:
        spec = importlib.util.find_spec(name)
        file = Path(spec.origin) if spec is not None and spec.origin else None
        if file is None or not file.is_file():
            raise EdgeForgeError(
                f"this Python has no source file for the standard module {name}",
                "name a text file in the recipe as the calibration source",
            )
        for paragraph in split_paragraphs(file.read_text(encoding="utf-8")):
            yield "code", name, paragraph


def _paragraphs(text: str, subject: str) -> Iterator[tuple[Domain, str, str]]:
    for paragraph in split_paragraphs(text):
        for piece in _pieces(paragraph):
            yield "text", subject, piece


def _pieces(paragraph: str) -> Iterator[str]:
    """A paragraph, or its lines when it is longer than a section: not every file has blank lines."""
    if len(paragraph) <= SECTION_CHARS:
        yield paragraph
    else:
        yield from (line for line in paragraph.splitlines() if line.strip())


def _documents(file: Path, text: str) -> list[Section]:
    paragraphs: list[tuple[Domain, str, str]] = []
    conversations: dict[tuple[Turn, ...], Section] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            json.dumps(found, ensure_ascii=False).encode()  # JSON can spell half a surrogate pair, which is no text
        except (ValueError, RecursionError) as error:
            raise RecipeError(f"{file}: line {number} is not JSON: {error}", f"a line is {_LINE}") from None
        if isinstance(found, dict) and isinstance(found.get("text"), str):
            paragraphs += _paragraphs(found["text"], "")
        elif isinstance(found, dict) and (turns := _turns(found.get("messages"))):
            said = tuple(content for role, content in turns if role == "assistant")
            conversations.setdefault(turns, Section("chat", f"line {number}", said, turns))
        else:
            raise RecipeError(f"{file}: line {number} is neither a text nor a conversation with an answer",
                              f"a line is {_LINE}, with at least one turn of the assistant")
    return [*gather(paragraphs), *conversations.values()]


def _turns(messages: Any) -> tuple[Turn, ...]:
    """Empty when messages are no conversation in which the assistant speaks."""
    if not isinstance(messages, list) or not all(
            isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
            for m in messages):
        return ()
    turns = tuple((m["role"], m["content"]) for m in messages)
    return turns if any(role == "assistant" and content.strip() for role, content in turns) else ()
