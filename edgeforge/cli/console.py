"""Where commands print: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from typing import Any, TextIO

from rich.console import Console

_UNWRAPPED = 4000
"""columns where nobody looks at them: a log is searched by line, and a sentence has to be on one"""


def _console(stream: TextIO, **options: Any) -> Console:
    return Console(width=None if stream.isatty() else _UNWRAPPED, **options)


OUT, ERR = _console(sys.stdout), _console(sys.stderr, stderr=True)


def line(row: dict[str, Any]) -> None:
    """One JSON object on one line of stdout."""
    print(json.dumps(row), flush=True)
