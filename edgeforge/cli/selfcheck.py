"""`edgeforge selfcheck`: a bundle on the machine that it was built for."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from edgeforge.cli import on as target
from edgeforge.cli.console import ERR, OUT, line


def selfcheck(
    bundle: Annotated[Path, typer.Argument(help="A bundle that `edgeforge build` made.")],
    on: Annotated[str | None, typer.Option(help="The target to check; unset: the one beside cpu.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a figure.")] = False,
) -> None:
    """Runs the bundle's test tokens on a target, compares with the CPU, times first token and decode. Exit 3: off."""
    from edgeforge import gates
    from edgeforge import selfcheck as rooms

    on = rooms.target(bundle, on)
    if caution := target.caution(bundle, on):
        ERR.print(f"[dim]{escape(caution)}[/dim]", highlight=False, soft_wrap=True)
    found = rooms.run(bundle, on)
    for check in found:
        if as_json:
            line({k: str(v) if isinstance(v, float) and not math.isfinite(v) else v
                  for k, v in dataclasses.asdict(check).items()} | {"passed": check.passed})
        else:
            mark = " " if check.threshold is None else "[green]✓[/green]" if check.passed else "[red]✗[/red]"
            note = f"  [dim]{escape(check.note)}[/dim]" if check.note else ""
            OUT.print(f"{mark} {escape(str(check))}{note}", highlight=False, soft_wrap=True)
    gates.require("selfcheck", found, f"`edgeforge lock check {bundle}` tells whether every file is whole; if so, "
                  "is this another device than the bundle's?")
