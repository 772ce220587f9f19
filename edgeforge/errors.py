"""What went wrong, where, and what the user can do about it."""

from __future__ import annotations

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_GATE = 3
_LONGEST = 8000
"""characters of a message that a person may still read"""


class EdgeForgeError(Exception):
    """An ordinary failure with a message for a person.

    Args:
        message: what happened and where (file, tensor, key).
        hint: what to change; empty when there is nothing to suggest.
    """

    exit_code = EXIT_ERROR

    def __init__(self, message: str, hint: str = "") -> None:
        if len(message) > _LONGEST:  # it quotes a file that somebody damaged, or a tool's whole log
            message = f"{message[:_LONGEST]}... ({len(message)} characters)"
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class RecipeError(EdgeForgeError):
    """The recipe asks for something that cannot be: exit code 2."""

    exit_code = EXIT_USAGE


class CheckpointError(EdgeForgeError):
    """The checkpoint is missing, truncated or does not match its config."""


class UnsupportedError(EdgeForgeError):
    """The model or target needs something that EdgeForge does not (yet) do."""


class CompilerError(EdgeForgeError):
    """A vendor tool crashed, hung or refused the graph."""


class GateError(EdgeForgeError):
    """A stage lost more accuracy (or structure) than its gate allows: exit code 3."""

    exit_code = EXIT_GATE
