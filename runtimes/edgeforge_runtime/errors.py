"""Failures with a message for a person; everything this package raises on purpose is a RunError."""

from __future__ import annotations

_LONGEST = 8000
"""characters of a message that a person may still read: some quote a file that somebody damaged"""


class RunError(Exception):
    """An ordinary failure: the message says what happened, where, and with which numbers."""

    def __str__(self) -> str:
        text = super().__str__()
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


class ManifestError(RunError, ValueError):
    """The folder is not a bundle that this runtime understands."""


class ExecutorError(RunError):
    """A graph could not be loaded or run, or the process that hosts it died."""


class CacheOverflow(RunError):
    """More tokens were written to the KV cache than its buffers hold."""


class ContextOverflow(RunError, ValueError):
    """A prompt is longer than the bundle's context.

    Args:
        tokens: length of the prompt.
        context: most tokens that the bundle's graphs can read.
    """

    def __init__(self, tokens: int, context: int) -> None:
        super().__init__(
            f"the prompt has {tokens} tokens, {tokens - context} more than the context of {context}: "
            "shorten it, or build the bundle with a longer context"
        )
        self.tokens = tokens
        self.context = context


class LogitsError(RunError, ValueError):
    """The logits leave nothing to choose from: NaN, +inf, or nothing finite."""


class TextError(RunError):
    """The bundle's tokenizer or chat template is missing, broken or refuses the messages."""
