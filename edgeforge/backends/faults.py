"""What vendor tools and devices say when they fail, as rows: code or phrase -> cause -> remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One known failure.

    name: a short handle. codes: numbers as tools print them ("5000", "0x80000416"). phrase: regular expression
    over a line of a log; empty when the codes are all there is.
    seen: where the cause was found; SEEN_HERE when a test of this repository makes it happen.
    """

    name: str
    codes: tuple[str, ...]
    phrase: str
    cause: str
    remedy: str
    seen: str

    @property
    def reproduced(self) -> bool:
        return self.seen == SEEN_HERE


SEEN_HERE = "reproduced by a test here"


def by_code(faults: Iterable[Fault], code: str) -> list[Fault]:
    """Faults that bear this number, written in any base: 1002, 0x3ea, -2147482602."""
    wanted = _number(code)
    return [f for f in faults if wanted is not None and any(_number(c) == wanted for c in f.codes)]


def in_text(faults: Iterable[Fault], text: str) -> list[Fault]:
    """Faults whose phrase, or whose code behind a word for error, stands in the text; in the order of the rows."""
    numbers = {_number(n) for n in _CODED.findall(text)}
    return [f for f in faults
            if (f.phrase and re.search(f.phrase, text, re.IGNORECASE)) or any(_number(c) in numbers for c in f.codes)]


_CODED = re.compile(r"(?:(?:err(?:or)?|code|status|failed|symbols)\b[\s:=,(]*(?:code|is)?[\s:=,(]*|failed to [\w ]+: )"
                    r"(0x[0-9a-f]+|-?\d{3,})", re.IGNORECASE)


def _number(text: str) -> int | None:
    """The value modulo 2**32: tools print the same code signed, unsigned and in hexadecimal."""
    try:
        return int(text.strip(), 0) & 0xFFFFFFFF
    except ValueError:
        return None
