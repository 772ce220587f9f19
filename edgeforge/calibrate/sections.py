"""Paragraphs gathered into sections: the unit of text that goes to one role and one domain.

Topics of a manual nest, so paragraphs are told apart by a hash of their text and each is used once.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

Domain = Literal["chat", "prose", "code", "text", "own", "languages"]
Role = Literal["calibration", "evaluation"]
Turn = tuple[str, str]
"""who speaks ("user", "assistant", "system"), and what"""

SECTION_CHARS = 4000
"""long enough for attention to look back, short enough that a file of 20 kB serves both roles"""
_COPY_WORDS = 8
"""an evaluation paragraph that has this many words in a row in common with calibration is left out"""
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|\w+")
"""a word, or one character of a script that is written without spaces"""


@dataclass(frozen=True)
class Section:
    """Consecutive paragraphs of one subject, or one conversation."""

    kind: Domain
    subject: str  # empty when unknown
    paragraphs: tuple[str, ...]
    turns: tuple[Turn, ...] = ()
    """of a recorded conversation; paragraphs then holds what the assistant says"""

    @property
    def text(self) -> str:
        """The paragraphs as they stood, a blank line between them."""
        return "\n\n".join(self.paragraphs)


def gather(paragraphs: Iterable[tuple[Domain, str, str]]) -> list[Section]:
    """Gathers (kind, subject, paragraph); a paragraph whose text has been seen is dropped."""
    seen: set[bytes] = set()
    made: list[Section] = []
    for (kind, subject), group in itertools.groupby(paragraphs, key=lambda item: item[:2]):
        gathered: list[str] = []
        for *_, paragraph in group:
            digest = text_hash(paragraph)
            if digest in seen:
                continue
            seen.add(digest)
            gathered.append(paragraph)
            if sum(map(len, gathered)) >= SECTION_CHARS:
                made.append(Section(kind, subject, tuple(gathered)))
                gathered = []
        if gathered:
            made.append(Section(kind, subject, tuple(gathered)))
    return made


def text_hash(paragraph: str) -> bytes:
    """A hash that is blind to case and white space: a paragraph wrapped or indented otherwise is the same."""
    return hashlib.sha256(" ".join(paragraph.lower().split()).encode()).digest()


def without_near_copies(part: list[Section], other: list[Section]) -> list[Section]:
    """part less the paragraphs that repeat a run of words of other: boilerplate, and prose said twice.

    A conversation goes as a whole.
    """
    known = {run for section in other for run in word_runs(section.text, _COPY_WORDS)}
    kept = [(s, tuple(p for p in s.paragraphs if known.isdisjoint(word_runs(p, _COPY_WORDS)))) for s in part]
    return [replace(section, paragraphs=paragraphs) for section, paragraphs in kept
            if paragraphs and (not section.turns or paragraphs == section.paragraphs)]


def word_runs(text: str, count: int) -> Iterator[tuple[str, ...]]:
    """Every run of count consecutive words, in lower case and without what stands between them."""
    words = _WORD.findall(text.lower())
    return (tuple(words[i: i + count]) for i in range(len(words) - count + 1))


def split_paragraphs(text: str) -> list[str]:
    """Paragraphs between blank lines."""
    return [p.rstrip() for p in re.split(r"\n[ \t]*\n", text) if p.strip()]
