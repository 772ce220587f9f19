"""What a backend says about this machine: its tools, what they can do here, and a proof."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tool:
    """One library or program. version: None when it is not here. detail: what else there is to know.

    problem: why it cannot be used although it is here (or must be here and is not); fix: the command that mends it.
    """

    name: str
    version: str | None
    detail: str = ""
    problem: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Card:
    """A chip in the vendor's own terms. line: for a person, without the chip's name. facts: the same as JSON."""

    line: str
    facts: dict[str, Any]


@dataclass(frozen=True)
class Abilities:
    """What can be done here for one chip: empty where it can, else why not."""

    compile: str
    emulate: str
    run: str
    inspect: str


@dataclass(frozen=True)
class Proof:
    """A small real job. seconds: of wall time. problem: empty when it went well. detail: what the result says."""

    name: str
    seconds: float
    problem: str = ""
    fix: str = ""
    detail: str = ""
