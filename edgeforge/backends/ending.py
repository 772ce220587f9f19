"""How a vendor tool failed, as data: for a person's message, and to tell one failure from another."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from edgeforge.errors import CompilerError

Kind = Literal["refused", "crashed", "hung", "memory", "garbage", "wrong", "stopped"]


@dataclass(frozen=True)
class Ending:
    """One failure.

    kind: refused (it said no), crashed (a signal), hung (the deadline), memory (the limit), garbage (it ended well
    and what it left cannot be used), wrong (numbers that are not those of the model), stopped (by
    us: no failure of its own).
    words: in words, with the numbers. signal: SIGSEGV, ...; empty unless crashed.
    lines: what the log says, the cause first. nodes: ONNX nodes that those lines name.
    """

    kind: Kind
    words: str
    signal: str = ""
    lines: tuple[str, ...] = ()
    nodes: frozenset[str] = frozenset()

    def same(self, other: Ending) -> bool:
        """The same failure, as far as can be told: one kind, one signal, and a node or a first line in common."""
        if (self.kind, self.signal) != (other.kind, other.signal):
            return False
        if self.kind not in ("refused", "garbage"):
            return True
        if self.nodes or other.nodes:
            return bool(self.nodes & other.nodes)
        return _essence(self.lines) == _essence(other.lines)


class ChildFailed(CompilerError):
    """A vendor tool's child process failed; `ending` says how."""

    def __init__(self, message: str, ending: Ending, hint: str = "") -> None:
        super().__init__(message, hint)
        self.ending = ending


def _essence(lines: tuple[str, ...]) -> str:
    """The first line without numbers, paths and quoted names, which change from graph to graph."""
    return re.sub(r"\S*[/\d]\S*|'[^']*'", "", lines[0]).strip() if lines else ""
