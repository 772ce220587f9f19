"""Text to calibrate and to evaluate with, read where it lies: none of it is stored with EdgeForge.

By default it comes from the Python standard library (PSF licence, on every machine that runs this): the
prose of `pydoc_data.topics` and the source of a few modules. A user's own text file takes the place of both.

Windows come in a fixed cycle of domains, so that any first k of them hold the declared mixture:

    text       tokenizer with a chat template        without one
    default    chat, prose, code, prose  (1:2:1)     prose, code, prose  (2:1)
    a file     chat, text, text          (1:2)       text

A `chat` window is a conversation rendered by the tokenizer's own template: the user asks about a paragraph,
the assistant's turn is the paragraph. The model will meet the template's special tokens in use, so it must
meet them in calibration.

Calibration and evaluation share no paragraph. Topics nest (`customization` lies whole inside
`specialnames`), so paragraphs are told apart by a hash of their text, and each is used once; consecutive
paragraphs are gathered into sections, and sections go to the two roles in turn. Evaluation then loses the
paragraphs that nearly repeat calibration. The text is that of the running Python: figures from two patch
releases differ a little. With a vocabulary of 49k the default text gives about 115 windows of 512 tokens to
calibration and 105 to evaluation.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from edgeforge.errors import CheckpointError, EdgeForgeError, RecipeError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Window: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
Domain = Literal["chat", "prose", "code", "text"]
Role = Literal["calibration", "evaluation"]

_CODE = (
    "argparse",
    "configparser",
    "csv",
    "difflib",
    "fractions",
    "heapq",
    "statistics",
    "tarfile",
    "textwrap",
)
# Long enough for attention to look back, short enough that a file of 20 kB serves both roles.
_SECTION_CHARS = 4000
# An evaluation paragraph that has this many words in a row in common with calibration is left out.
_COPY_WORDS = 8
# A heading is no answer: it goes with the paragraph after it.
_ANSWER_CHARS = 80
# A template that prints today's date would make other windows, and another cache key, every day.
_TODAY = datetime(2025, 1, 1)
_DATE = re.compile(r"""strftime_now\(\s*(['"])(.*?)\1\s*\)""")
_QUESTIONS = ("What should I know about {}?", "Explain {} to me.", "What does the reference say about {}?")


@dataclass(frozen=True)
class Section:
    """Consecutive paragraphs of one subject: the unit that goes to one role and one domain."""

    kind: Domain
    subject: str  # empty when unknown
    paragraphs: tuple[str, ...]

    @property
    def text(self) -> str:
        """The paragraphs as they stood, a blank line between them."""
        return "\n\n".join(self.paragraphs)


@dataclass(frozen=True)
class Run:
    """A stretch of tokens that also stands elsewhere: `a[window][start : start + length]`."""

    window: int
    start: int
    length: int


def domains(tokenizer: PreTrainedTokenizerBase, windows: int, source: Path | None = None) -> list[Domain]:
    """The domain of each window that the two functions below return, in their order."""
    cycle: tuple[Domain, ...] = ("prose", "code", "prose") if source is None else ("text",)
    if tokenizer.chat_template:
        cycle = ("chat", *cycle) if source is None else ("chat", "text", "text")
    return list(itertools.islice(itertools.cycle(cycle), windows))


def calibration_windows(
    tokenizer: PreTrainedTokenizerBase, tokens_per_window: int, windows: int, source: Path | None = None
) -> list[Window]:
    """Token ids to collect statistics with.

    Each window opens with the tokens that the tokenizer puts before any text (BOS, where there is one),
    because the running model sees them too. A window doesn't depend on how many are asked for.

    Args:
        tokenizer: of the model to be calibrated.
        tokens_per_window: length of each window, its opening tokens included.
        windows: how many; `domains` says what each is made of.
        source: a utf-8 text file, paragraphs separated by blank lines; None for the default text. Special
            tokens that are spelled out in it become their ids.

    Returns:
        `windows` arrays of int64 [tokens_per_window].

    Raises:
        RecipeError: a source that cannot be read or holds too little text; windows too short for a chat turn.
        CheckpointError: a chat template that refuses a plain conversation.
    """
    return _windows(tokenizer, tokens_per_window, windows, source, "calibration")


def evaluation_windows(
    tokenizer: PreTrainedTokenizerBase, tokens_per_window: int, windows: int, source: Path | None = None
) -> list[Window]:
    """Token ids to measure with: as `calibration_windows`, and no paragraph in common with it."""
    return _windows(tokenizer, tokens_per_window, windows, source, "evaluation")


def template_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The special ids that the chat template writes around the turns of a conversation; empty without one."""
    if not tokenizer.chat_template:
        return frozenset()
    special = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
    return frozenset(special.intersection(_render(tokenizer, _turn("Why?", "Because."))))


def overlap(
    a: Sequence[Window], b: Iterable[Window], tokenizer: PreTrainedTokenizerBase | None = None, n: int = 32
) -> list[Run]:
    """Where `a` repeats `n` or more consecutive tokens of `b`: the longest such runs, in `a`'s order.

    With a tokenizer, what its chat template writes doesn't count: runs stop at its special ids, and the words
    that it puts before the first user turn (a system prompt) are left out.
    """
    frame = _frame(tokenizer) if tokenizer is not None else _Frame(frozenset(), ())
    known = {piece[i : i + n].tobytes() for w in b for _, piece in frame.pieces(w) for i in _starts(piece, n)}
    runs: list[Run] = []
    for index, window in enumerate(a):
        for offset, piece in frame.pieces(window):
            end = -1
            for i in _starts(piece, n):
                if piece[i : i + n].tobytes() not in known:
                    continue
                if i <= end:
                    last = runs.pop()
                    runs.append(Run(index, last.start, offset + i + n - last.start))
                else:
                    runs.append(Run(index, offset + i, n))
                end = i + 1
    return runs


def pools(source: Path | None, with_chat: bool) -> dict[tuple[Role, Domain], list[Section]]:
    """The sections that each domain may use in each role; no paragraph is in two of these lists.

    Prose (or the user's text) gives every third section to `chat` when there is a template for it.
    """
    default = (_paragraphs_of_topics(), _paragraphs_of_code())
    paragraphs = itertools.chain(*(default if source is None else (_paragraphs_of_file(source),)))
    # By hash: a few windows then come from many subjects, and the order is the same everywhere.
    every = sorted(_sections(paragraphs), key=lambda section: text_hash(section.text))
    kinds = [[s for s in every if s.kind == kind] for kind in sorted({s.kind for s in every})]
    calibration = [s for part in kinds for s in part[0::2]]
    evaluation = _without_near_copies([s for part in kinds for s in part[1::2]], calibration)
    made: dict[tuple[Role, Domain], list[Section]] = {}
    roles: dict[Role, list[Section]] = {"calibration": calibration, "evaluation": evaluation}
    for role, chosen in roles.items():
        spoken = itertools.count()
        for section in chosen:
            chat = with_chat and section.kind != "code" and next(spoken) % 3 == 2
            made.setdefault((role, "chat" if chat else section.kind), []).append(section)
    return made


def _windows(
    tokenizer: PreTrainedTokenizerBase, length: int, count: int, source: Path | None, role: Role
) -> list[Window]:
    plan = domains(tokenizer, count, source)
    pool = pools(source, with_chat=bool(tokenizer.chat_template))
    streams = {
        domain: (_chat if domain == "chat" else _plain)(tokenizer, length, pool.get((role, domain), []))
        for domain in dict.fromkeys(plan)
    }
    made: list[Window] = []
    for domain in plan:
        ids = next(streams[domain], None)
        if ids is None:
            raise RecipeError(
                f"{source or 'the default text'} holds {domain} for {plan[: len(made)].count(domain)} {role} "
                f"windows of {length} tokens, {plan.count(domain)} are asked for",
                "ask for fewer or shorter windows, or name a longer text file in the recipe",
            )
        made.append(np.asarray(ids, dtype=np.int64))
    missing = template_ids(tokenizer).difference(*(window.tolist() for window in made))
    if missing and "chat" in plan:
        raise RecipeError(
            f"{count} windows of {length} tokens never reach "
            f"{tokenizer.convert_ids_to_tokens(sorted(missing))}, which the chat template writes",
            "use longer windows",
        )
    return made


def _plain(tokenizer: PreTrainedTokenizerBase, length: int, part: list[Section]) -> Iterator[list[int]]:
    """Running text cut into windows, each behind the tokenizer's opening tokens."""
    opening = _opening(tokenizer)
    need = length - len(opening)
    if need < 1:
        raise RecipeError(f"windows of {length} tokens have no room behind {len(opening)} opening tokens")
    ids: list[int] = []
    for section in part:
        text = section.text + "\n\n"
        ids += tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        while len(ids) >= need:
            yield opening + ids[:need]
            del ids[:need]


def _chat(tokenizer: PreTrainedTokenizerBase, length: int, part: list[Section]) -> Iterator[list[int]]:
    """Conversations of as many turns as a window holds, the last one cut off."""
    question = itertools.cycle(_QUESTIONS)
    messages: list[dict[str, str]] = []
    for section in part:
        answer = ""
        for paragraph in section.paragraphs:
            answer = f"{answer}\n\n{textwrap.dedent(paragraph)}".strip()
            if len(answer) < _ANSWER_CHARS:
                continue
            subject = section.subject or f'"{" ".join(answer.split()[:6])}"'
            # At about four characters a token, an answer takes half a window at most: turns end inside.
            messages += _turn(next(question).format(subject), _clip(answer, 2 * length))
            answer = ""
            ids = _render(tokenizer, messages)
            if len(ids) >= length:
                yield ids[:length]
                messages = []


def _turn(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _render(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]]) -> list[int]:
    from jinja2 import TemplateError

    try:
        template = _DATE.sub(lambda call: repr(_TODAY.strftime(call[2])), tokenizer.get_chat_template())
        text = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
    except (TemplateError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the chat template refuses a plain conversation of user and assistant: {error}",
            "repair chat_template.jinja, or remove it to calibrate on plain text",
        ) from error
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return ids


def _opening(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids that the tokenizer puts before any text."""
    bare: list[int] = tokenizer("a", add_special_tokens=False)["input_ids"]
    full: list[int] = tokenizer("a")["input_ids"]
    return next((full[:i] for i in range(len(full)) if full[i : i + len(bare)] == bare), [])


@dataclass(frozen=True)
class _Frame:
    """What a chat template writes itself: special ids anywhere, and the words before the first question."""

    special: frozenset[int]
    preamble: tuple[int, ...]

    def pieces(self, window: Window) -> Iterator[tuple[int, Window]]:
        """The stretches of a window that are not the template's, each with its offset."""
        start = len(_common_start(window.tolist(), self.preamble))
        cuts = [i for i in range(start, len(window)) if int(window[i]) in self.special]
        for cut in [*cuts, len(window)]:
            if cut > start:
                yield start, window[start:cut]
            start = cut + 1


def _frame(tokenizer: PreTrainedTokenizerBase) -> _Frame:
    if not tokenizer.chat_template:
        return _Frame(frozenset(), ())
    one, other = (_render(tokenizer, _turn(q, "Because.")) for q in ("Why?", "How so?"))
    return _Frame(template_ids(tokenizer), _common_start(one, other))


def _common_start(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
    return tuple(first for first, _ in same)


def _starts(piece: Window, n: int) -> range:
    return range(len(piece) - n + 1)


def _sections(paragraphs: Iterable[tuple[Domain, str, str]]) -> list[Section]:
    """Gather (kind, subject, paragraph); a paragraph whose text has been seen is dropped."""
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
            if sum(map(len, gathered)) >= _SECTION_CHARS:
                made.append(Section(kind, subject, tuple(gathered)))
                gathered = []
        if gathered:
            made.append(Section(kind, subject, tuple(gathered)))
    return made


def text_hash(paragraph: str) -> bytes:
    """A hash that is blind to case and white space: a paragraph wrapped or indented otherwise is the same."""
    return hashlib.sha256(" ".join(paragraph.lower().split()).encode()).digest()


def _without_near_copies(part: list[Section], other: list[Section]) -> list[Section]:
    """`part` less the paragraphs that repeat a run of words of `other`: boilerplate, and prose said twice."""
    known = {run for section in other for run in _word_runs(section.text)}
    kept = [(s, tuple(p for p in s.paragraphs if known.isdisjoint(_word_runs(p)))) for s in part]
    return [replace(section, paragraphs=paragraphs) for section, paragraphs in kept if paragraphs]


def _word_runs(text: str) -> Iterator[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return (tuple(words[i : i + _COPY_WORDS]) for i in range(len(words) - _COPY_WORDS + 1))


def _split(text: str) -> list[str]:
    return [p.rstrip() for p in re.split(r"\n[ \t]*\n", text) if p.strip()]


def _paragraphs_of_topics() -> Iterator[tuple[Domain, str, str]]:
    from pydoc_data.topics import topics

    # The longest first: a topic that lies inside another one then adds nothing but its narrower name.
    keys = sorted(topics, key=lambda key: (-len(topics[key]), key))
    narrowest = {text_hash(p): key for key in keys for p in _split(topics[key])}
    for key in keys:
        for paragraph in _split(topics[key]):
            yield "prose", f"{narrowest[text_hash(paragraph)].replace('-', ' ')} in Python", paragraph


def _paragraphs_of_code() -> Iterator[tuple[Domain, str, str]]:
    for name in _CODE:
        spec = importlib.util.find_spec(name)
        file = Path(spec.origin) if spec is not None and spec.origin else None
        if file is None or not file.is_file():
            raise EdgeForgeError(
                f"this Python has no source file for the standard module {name}",
                "name a text file in the recipe as the calibration source",
            )
        for paragraph in _split(file.read_text(encoding="utf-8")):
            yield "code", name, paragraph


def _paragraphs_of_file(file: Path) -> Iterator[tuple[Domain, str, str]]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise RecipeError(f"{file} cannot be read: {error.strerror}", "check the path") from error
    except UnicodeDecodeError as error:
        raise RecipeError(
            f"{file} is not utf-8 text: byte {error.start} is {error.object[error.start]:#04x}",
            "convert it (iconv -t utf-8), or name another file",
        ) from error
    for paragraph in _split(text):
        for piece in _pieces(paragraph):
            yield "text", "", piece


def _pieces(paragraph: str) -> Iterator[str]:
    """A paragraph, or its lines when it is longer than a section: not every file has blank lines."""
    if len(paragraph) <= _SECTION_CHARS:
        yield paragraph
    else:
        yield from (line for line in paragraph.splitlines() if line.strip())


def _clip(text: str, chars: int) -> str:
    """At most `chars` characters, cut between words."""
    if len(text) <= chars:
        return text
    return text[:chars].rsplit(None, 1)[0]
