"""Where commands print: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console

OUT, ERR = Console(), Console(stderr=True)


def line(row: dict[str, Any]) -> None:
    """One JSON object on one line of stdout."""
    print(json.dumps(row), flush=True)
