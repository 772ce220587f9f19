"""`edgeforge inspect`: what a file or a folder holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from edgeforge import describe
from edgeforge.cli.console import OUT, line
from edgeforge.errors import EXIT_ERROR


def inspect(
    path: Annotated[Path, typer.Argument(help="An .onnx, encodings, compiled binary, bundle or stage's folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Says what a file or folder holds: interface, operators, grids, chip, gates, sizes, what is missing.
    Exit 1: it has problems."""
    facts = describe.describe(path)
    if as_json:
        line(facts)
    else:
        for item in _render(facts, 0):
            OUT.print(item, highlight=False, soft_wrap=isinstance(item, str))
    if facts.get("problems"):
        raise typer.Exit(EXIT_ERROR)


def _render(facts: dict[str, Any], depth: int) -> Iterator[str | Table]:
    pad = "  " * depth
    for key, value in facts.items():
        name = f"{pad}[bold]{escape(key.replace('_', ' '))}[/bold]"
        if value in ("", None, [], {}):
            continue
        if _is_rows(value) and any(isinstance(v, list) and _is_rows(v) for v in value[0].values()):
            for row in value:
                yield f"{name} {escape(str(row.get('name', '')))}"
                yield from _render({k: v for k, v in row.items() if k != "name"}, depth + 1)
        elif _is_rows(value):
            yield name
            yield _table(value, depth)
        elif isinstance(value, dict):
            yield name
            yield from _render(value, depth + 1)
        elif isinstance(value, list):
            yield name + "".join(f"\n{pad}  {escape(_plain(v))}" for v in value)
        else:
            yield f"{name}: {escape(_plain(value))}"


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _table(rows: list[dict[str, Any]], depth: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("  " * depth)  # the indent
    for key in rows[0]:
        table.add_column(key.replace("_", " "), overflow="fold", header_style="dim")
    for row in rows:
        table.add_row("", *(escape(_plain(row.get(key))) for key in rows[0]))
    return table


def _plain(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return "" if value is None else str(value)
