"""`edgeforge lock check`: is a bundle still what its lock says?"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from edgeforge import lock
from edgeforge.cli.console import OUT, line
from edgeforge.errors import EXIT_ERROR

app = typer.Typer(no_args_is_help=True, help="What a bundle was made from, and whether it is still that.")


@app.callback()
def _group() -> None:
    """Commands: check."""


@app.command()
def check(
    bundle: Annotated[Path, typer.Argument(help="A bundle.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Compares every file with its sha256, and this machine's tools with those of the build. Exit 1: damaged."""
    found = lock.check(bundle)
    if as_json:
        line(dataclasses.asdict(found))
    else:
        for text in found.damaged:
            OUT.print(f"[red]✗[/red] {escape(text)}", soft_wrap=True, highlight=False)
        if not found.damaged:
            OUT.print(f"[green]✓[/green] {found.files} files as locked", highlight=False)
        for text in found.drift:
            OUT.print(f"  [dim]a build made here would differ: {escape(text)}[/dim]", soft_wrap=True, highlight=False)
    if found.damaged:
        raise typer.Exit(EXIT_ERROR)
