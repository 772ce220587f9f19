"""Is a text long enough for the calibration windows asked for? Told by tokenizer.json alone, before anything is loaded.

The most windows that it may give: what the build finds may be fewer, for it leaves out what the gates measure on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

from edgeforge.calibrate.sections import Domain, Section
from edgeforge.calibrate.windows import by_domain, cycle, roles

_OPENING = 4
"""ids before any text, at most"""
_FRAME, _TURN = 256, 16
"""ids that a chat template adds to a conversation, and to each turn, at most"""
_PLENTY = 8
"""characters a token: with so many nobody has to count"""
_COUNTED = 1 << 20
"""characters that are counted, in a second or so; behind them a token a character is believed"""


def most_windows(found: list[Section], source: Path | None, windows: int, length: int, vocabulary: Path) -> int:
    """How many of so many windows the text may give.

    Args:
        found: the sections of source; None: of the default text.
        length: of a window, in tokens.
        vocabulary: a tokenizer.json; read when characters alone do not tell. One that is damaged is believed to make
            enough tokens: it is told of where the tokenizer is loaded.
    """
    chosen, _ = roles(found)
    spoken = any(s.turns for s in found)
    if not spoken and sum(len(s.text) for s in chosen) >= _PLENTY * windows * length:
        return windows
    tokens = _counter(vocabulary)
    if tokens is None:
        return windows
    # Text lends to chat when there is a template for it; a user's only if that fills a window.
    return max(_reached(by_domain(chosen, lend), source, windows, length, tokens, lend)
               for lend in {not spoken, False})


def _counter(vocabulary: Path) -> Callable[[str], int] | None:
    from tokenizers import Tokenizer

    try:
        made = Tokenizer.from_file(str(vocabulary))
    except Exception:  # all that tokenizers raises
        return None
    made.no_truncation()
    return lambda text: len(made.encode(text, add_special_tokens=False).ids)


def _reached(pool: dict[Domain, list[Section]], source: Path | None, windows: int, length: int,
             tokens: Callable[[str], int], lent: bool) -> int:
    """Windows before the first domain has no more."""
    plan = list(itertools.islice(itertools.cycle(cycle(pool.keys(), source)), windows))
    held = {domain: plan.count(domain) if domain == "chat" and lent else
            _windows(pool.get(domain, []), plan.count(domain), length, tokens) for domain in set(plan)}
    for index, domain in enumerate(plan):
        held[domain] -= 1
        if held[domain] < 0:
            return index
    return windows


def _windows(sections: Sequence[Section], wanted: int, length: int, tokens: Callable[[str], int]) -> int:
    """At most so many of the wanted windows: each holds a conversation at least, or length tokens of running text."""
    most = len(sections) if any(s.turns for s in sections) else wanted
    need, have, counted = wanted * (length - _OPENING), 0, 0
    for section in sections:
        if have >= need:
            break
        text = "\n".join(content for _, content in section.turns) or f"{section.text}\n\n"
        counted += len(text)
        have += tokens(text) if counted <= _COUNTED else len(text)
        have += _FRAME + _TURN * len(section.turns) if section.turns else 0
    return min(most, have // (length - _OPENING))
