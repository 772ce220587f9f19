"""`edgeforge check`: what stands against a build, all at once, before any work."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from edgeforge import backends, recipe
from edgeforge import check as checks
from edgeforge.cli.build import ALLOW_PICKLE
from edgeforge.cli.console import OUT
from edgeforge.findings import Facts, Finding

_COLOURS = {"recipe": "red", "error": "red", "warning": "yellow"}


def check(
    path: Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe file (YAML).")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
    allow_pickle: Annotated[bool, typer.Option("--allow-pickle", help=ALLOW_PICKLE)] = False,
) -> None:
    """Checks recipe, checkpoint and chip without building. Exit 0: a build may start; 2: the recipe has to change; 1:
    something else stands against it."""
    report = checks.examine(recipe.load(path), allow_pickle)
    if as_json:
        print(json.dumps(_plain(report), indent=1))
    else:
        _show(report.facts)
        for finding in report.findings:
            _tell(finding)
        if not report.exit_code:
            OUT.print("[green]a build may start[/green]")
    raise typer.Exit(report.exit_code)


def _plain(report: checks.Report) -> dict[str, object]:
    chip, found = report.facts.chip, report.facts.estimate
    return {
        "ok": not report.exit_code, "findings": [dataclasses.asdict(f) for f in report.findings],
        "chip": {"name": chip.name, "part": chip.part, **backends.backend(chip.backend).card(chip).facts},
        "parts": checks.rows(report.facts),
        "build": found and {"memory_bytes": found.memory, "disk_bytes": found.disk}}


def _show(facts: Facts) -> None:
    chip, found = facts.chip, facts.estimate
    card = backends.backend(chip.backend).card(chip)
    OUT.print(f"[bold]{chip.name}[/bold]  {chip.part}, {escape(card.line)}", highlight=False, soft_wrap=True)
    if found is None:
        return
    table = Table("part", *(f"{name}, MiB" for name in ("weights", "KV cache", "logits", "limit")), box=None)
    for row in checks.rows(facts):
        table.add_row(row["part"], *(f"{value:,.1f}" if value else "" for value in list(row.values())[1:]))
    table.add_row("together", f"{found.weights / 2**20:,.1f}", f"{found.kv / 2**20:,.1f}")
    OUT.print(table, highlight=False)
    OUT.print(f"the build itself: about {found.memory / 2**30:.1f} GiB of memory, {found.disk / 2**30:.1f} GiB of disk",
              highlight=False)


def _tell(finding: Finding) -> None:
    kind = "warning" if finding.severity == "warning" else "error"
    OUT.print(f"[{_COLOURS[finding.severity]}]{kind}:[/] {escape(str(finding))}", soft_wrap=True, highlight=False)
    if finding.change:
        OUT.print(f"  {escape(finding.change)}", soft_wrap=True, highlight=False)
