"""`edgeforge targets`: the chips that a recipe can name."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from edgeforge import backends
from edgeforge.cli.console import OUT, line
from edgeforge.targets import CHIPS


def targets(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a chip.")] = False,
) -> None:
    """Lists every chip by the name that `target.chip` takes, and what it takes itself."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("target.chip", "part", "takes"):
        table.add_column(name, header_style="bold", overflow="fold")
    for chip in CHIPS.values():
        card = backends.backend(chip.backend).card(chip)
        if as_json:
            line({"name": chip.name, "part": chip.part, "profile": chip.profile.name, **card.facts})
        table.add_row(chip.name, chip.part, escape(card.line))
    if not as_json:
        OUT.print(table, highlight=False)
