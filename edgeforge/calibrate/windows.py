"""Windows of token ids, cut from text of several domains.

They come in a fixed cycle of domains, so that any first k of them hold the declared mixture:

    text            tokenizer with a chat template        without one
    default         chat, prose, code, prose  (1:2:1)     prose, code, prose  (2:1)
    a text file     chat, text, text          (1:2)       text
    a short one     text                                  text
    conversations   chat                                  (refused)

A `chat` window is a conversation rendered by the tokenizer's own template: recorded ones as they are (.jsonl), and
where there are none the user asks about a paragraph and the assistant's turn is the paragraph. The model will meet
the template's special tokens in use, so it must meet them in calibration. A user's file takes the place of the
default text; what the model writes itself (own.py) comes beside either, and is not drawn from these. A file is short
when the part of it that `chat` would take fills no window: then all of it is text.

Calibration and evaluation share no paragraph: consecutive ones are gathered into sections, sections go to the two
roles in turn (the first four of a short text to calibration), and evaluation loses the paragraphs that nearly repeat
calibration. The gates read the default text whatever calibration reads, so a user's file that holds some of it loses
those windows. With a vocabulary of 49k the default text gives about 115 windows of 512 tokens to calibration and 105
to evaluation.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgeforge.calibrate import sources, template
from edgeforge.calibrate.overlap import Known
from edgeforge.calibrate.sections import Domain, Role, Section, text_hash, without_near_copies
from edgeforge.calibrate.template import Window
from edgeforge.errors import CheckpointError, RecipeError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from edgeforge.recipe import Recipe

Pools = dict[tuple[Role, Domain], list[Section]]

_ANSWER_CHARS = 80
"""a heading is no answer: it goes with the paragraph after it"""
_LEAST = 4
"""sections that calibration takes of a text before evaluation gets any"""
_KEYS: dict[Role, tuple[str, str]] = {"calibration": ("calibrate.windows", "calibrate.tokens"),
                                      "evaluation": ("gates.windows", "target.context")}
"""of a recipe: how many windows a role has, and how long they are"""
_QUESTIONS = ("What should I know about {}?", "Explain {} to me.", "What does the reference say about {}?")


def calibration_windows(
    tokenizer: PreTrainedTokenizerBase, tokens_per_window: int, windows: int, source: Path | None = None,
    known: Known | None = None,
) -> list[tuple[Domain, Window]]:
    """Token ids to collect statistics with, each window's domain before it.

    Each window opens with the tokens that the tokenizer puts before any text (BOS, where there is one),
    because the running model sees them too. A window doesn't depend on how many are asked for.

    Args:
        tokenizer: of the model to be calibrated.
        tokens_per_window: length of each window, its opening tokens included.
        windows: how many.
        source: a user's file; None for the default text.
        known: text that no window may repeat; the next one takes the place of one that does.

    Returns:
        `windows` arrays of int64 [tokens_per_window].

    Raises:
        RecipeError: a source that cannot be read or holds too little text (but for what is known); windows too short
            for a chat turn.
        CheckpointError: a chat template that refuses a plain conversation.
    """
    return _windows(tokenizer, tokens_per_window, windows, source, "calibration", known)


def evaluation_windows(
    tokenizer: PreTrainedTokenizerBase, tokens_per_window: int, windows: int
) -> list[tuple[Domain, Window]]:
    """Token ids to measure with: as `calibration_windows` of the default text, and no paragraph in common with it."""
    return _windows(tokenizer, tokens_per_window, windows, None, "evaluation")


def gate_windows(tokenizer: PreTrainedTokenizerBase, recipe: Recipe) -> list[Window]:
    """What a build's gates measure on: the first evaluation windows of the default text, of the built context."""
    return [w for _, w in evaluation_windows(tokenizer, recipe.target.context, recipe.gates.windows)]


def pools(tokenizer: PreTrainedTokenizerBase, source: Path | None) -> Pools:
    """The sections that each domain may use in each role; no paragraph is in two of these lists.

    Prose (or the user's text) gives every third section to `chat` when there is a template for it and no recorded
    conversation.

    Raises:
        RecipeError: a source that cannot be read; recorded conversations for a model without a template.
    """
    found = sources.builtin() if source is None else sources.read(source)
    require_template_for(tokenizer, found, source)
    calibration, rest = roles(found)
    evaluation = without_near_copies(rest, calibration)
    lend = bool(tokenizer.chat_template) and not any(s.turns for s in found)
    made: Pools = {("calibration", domain): part for domain, part in by_domain(calibration, lend).items()}
    return made | {("evaluation", domain): part for domain, part in by_domain(evaluation, lend).items()}


def roles(found: list[Section]) -> tuple[list[Section], list[Section]]:
    """What calibration gets, and evaluation but for what nearly repeats it."""
    # By hash: a few windows then come from many subjects, and the order is the same everywhere.
    every = sorted(found, key=lambda section: text_hash(section.text))
    kinds = [[s for s in every if s.kind == kind] for kind in sorted({s.kind for s in every})]
    halves = [_halves(part) for part in kinds]
    return [s for half, _ in halves for s in half], [s for _, half in halves for s in half]


def by_domain(chosen: list[Section], lend: bool) -> dict[Domain, list[Section]]:
    """The sections of one role by the domain that uses them; lend: every third, but for code, goes to chat."""
    made: dict[Domain, list[Section]] = {}
    spoken = itertools.count()
    for section in chosen:
        chat = lend and section.kind != "code" and next(spoken) % 3 == 2
        made.setdefault("chat" if chat else section.kind, []).append(section)
    return made


def _halves(part: list[Section]) -> tuple[list[Section], list[Section]]:
    """What calibration gets, and evaluation."""
    if len(part) < 2 * _LEAST:
        return part[:_LEAST], part[_LEAST:]
    return part[0::2], part[1::2]


def require_template_for(tokenizer: PreTrainedTokenizerBase, found: Sequence[Section], source: Path | None) -> None:
    """RecipeError when there are recorded conversations, and nothing to write them with."""
    if any(s.turns for s in found) and not tokenizer.chat_template:
        raise RecipeError(f"{source} holds conversations, and the model has no chat template to write them with",
                          'add chat_template.jinja to the checkpoint, or give lines of {"text": "..."}')


def cycle(kinds: Set[Domain], source: Path | None) -> tuple[Domain, ...]:
    """The order of domains that repeats, of those that there are; see the table above."""
    plain: tuple[Domain, ...] = ("prose", "code", "prose") if source is None else ("text", "text")
    if "chat" not in kinds:
        return plain
    return ("chat", *plain) if len(kinds) > 1 else ("chat",)


def stream(tokenizer: PreTrainedTokenizerBase, length: int, domain: Domain, part: list[Section],
           source: Path | None) -> Iterator[Window]:
    """The windows of one domain, as many as its sections hold.

    Raises: as `calibration_windows`.
    """
    made = (_plain(tokenizer, length, part) if domain != "chat"
            else _recorded(tokenizer, length, part, source) if any(s.turns for s in part)
            else _chat(tokenizer, length, part))
    return (np.asarray(ids, dtype=np.int64) for ids in made)


def _windows(
    tokenizer: PreTrainedTokenizerBase, length: int, count: int, source: Path | None, role: Role,
    known: Known | None = None,
) -> list[tuple[Domain, Window]]:
    pool = _kept(tokenizer, length, pools(tokenizer, source), source, role)
    plan = list(itertools.islice(itertools.cycle(cycle({kind for _, kind in pool}, source)), count))
    every = {domain: stream(tokenizer, length, domain, pool.get((role, domain), []), source)
             for domain in dict.fromkeys(plan)}
    streams = {domain: known.without(found) if known is not None else found for domain, found in every.items()}
    made: list[tuple[Domain, Window]] = []
    for domain in plan:
        ids = next(streams[domain], None)
        if ids is None:
            raise _too_little(source, role, domain, length, len(made), count, known)
        made.append((domain, ids))
    if "chat" in plan:
        _require_template(tokenizer, [window for _, window in made], length)
    return made


def _kept(tokenizer: PreTrainedTokenizerBase, length: int, made: Pools, source: Path | None, role: Role) -> Pools:
    """The pools; where what a user's text lends to chat fills no window, it's text again."""
    lent = made.get((role, "chat"), [])
    if source is None or any(s.turns for s in lent) or next(
            stream(tokenizer, length, "chat", lent, source), None) is not None:
        return made
    return {(role, "text"): [*made.get((role, "text"), []), *lent]}


def _too_little(source: Path | None, role: Role, domain: Domain, length: int, held: int, count: int,
                known: Known | None) -> RecipeError:
    """held: windows that there are, in the order of the cycle, before domain has no more."""
    windows, tokens = _KEYS[role]
    holds = (f"holds {held} {role} window{'s' * (held > 1)} of {length} tokens, and then no more {domain}" if held
             else f"holds too little {domain} for one {role} window of {length} tokens")
    repeats = f"; {known.repeats} more repeat what the gates measure on" if known is not None and known.repeats else ""
    fewer = f"set {windows} to {held}, or" if held else "set"
    longer = ", or name a longer text (calibrate.text)" if role == "calibration" else ""
    return RecipeError(f"{source or 'the default text'} {holds}; {count} are asked for{repeats}",
                       f"{fewer} {tokens} to less than {length}{longer}")


def _require_template(tokenizer: PreTrainedTokenizerBase, windows: Sequence[Window], length: int) -> None:
    missing = template.template_ids(tokenizer).difference(*(window.tolist() for window in windows))
    if missing:
        raise RecipeError(
            f"{len(windows)} windows of {length} tokens never reach "
            f"{tokenizer.convert_ids_to_tokens(sorted(missing))}, which the chat template writes",
            "use longer windows (calibrate.tokens)",
        )


def _plain(tokenizer: PreTrainedTokenizerBase, length: int, part: list[Section]) -> Iterator[list[int]]:
    """Running text cut into windows, each behind the tokenizer's opening tokens."""
    texts = (template.plain_ids(tokenizer, section.text + "\n\n") for section in part)
    return cut(template.opening(tokenizer), length, texts)


def cut(opening: list[int], length: int, pieces: Iterator[list[int]]) -> Iterator[list[int]]:
    """One piece after the other, cut into windows of length ids, each behind opening."""
    need = length - len(opening)
    if need < 1:
        raise RecipeError(f"windows of {length} tokens have no room behind {len(opening)} opening tokens")
    ids: list[int] = []
    for piece in pieces:
        ids += piece
        while len(ids) >= need:
            yield opening + ids[:need]
            del ids[:need]


def _chat(tokenizer: PreTrainedTokenizerBase, length: int, part: list[Section]) -> Iterator[list[int]]:
    """Conversations of as many turns as a window holds, the last one cut off."""
    question = itertools.cycle(_QUESTIONS)
    turns: list[tuple[str, str]] = []
    for section in part:
        answer = ""
        for paragraph in section.paragraphs:
            answer = f"{answer}\n\n{textwrap.dedent(paragraph)}".strip()
            if len(answer) < _ANSWER_CHARS:
                continue
            subject = section.subject or f'"{" ".join(answer.split()[:6])}"'
            # At about four characters a token, an answer takes half a window at most: turns end inside.
            turns += template.question(next(question).format(subject), _clip(answer, 2 * length))
            answer = ""
            ids = template.render(tokenizer, turns)
            if len(ids) >= length:
                yield ids[:length]
                turns = []


def _recorded(tokenizer: PreTrainedTokenizerBase, length: int, part: list[Section],
              source: Path | None) -> Iterator[list[int]]:
    """Recorded conversations one after the other; each window begins with one, the last one is cut off."""
    ids: list[int] = []
    for section in part:
        try:
            ids += template.render(tokenizer, section.turns)
        except CheckpointError as error:
            why = error.message.partition(": ")[2]
            raise RecipeError(f"{source}: {section.subject}: the model's chat template refuses it: {why}",
                              "write the conversation as the template takes it") from error
        if len(ids) >= length:
            yield ids[:length]
            ids = []


def _clip(text: str, chars: int) -> str:
    """At most `chars` characters, cut between words."""
    if len(text) <= chars:
        return text
    return text[:chars].rsplit(None, 1)[0]
