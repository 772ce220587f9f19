"""`edgeforge doctor`: this machine, or one failure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from edgeforge import doctor as rooms
from edgeforge.backends.faults import Fault
from edgeforge.backends.health import Abilities
from edgeforge.cli.console import ERR, OUT, line
from edgeforge.errors import EXIT_ERROR


def doctor(
    code: Annotated[str | None, typer.Argument(
        help="An error code (1002, 0x80000416), a message, a log, a failed job's folder, or a bundle.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object (or, for a code, one a cause).")] = False,
) -> None:
    """Says what is installed, what can be done here for each chip, what is wrong (exit 1); or what a code means."""
    if code is not None:
        found = rooms.explain(code)
        for fault in found:
            line(dataclasses.asdict(fault)) if as_json else _explain(fault)
        if not found:
            ERR.print(f"{escape(code)}: every file is as it was made, and the binaries fit together. If a device "
                      "refuses it all the same, give the error code or the log that you see", highlight=False,
                      soft_wrap=True)
        return
    health = rooms.examine(Path.cwd())
    if as_json:
        line(dataclasses.asdict(health))
    else:
        _show(health)
    if health.problems:
        raise typer.Exit(EXIT_ERROR)


def _explain(fault: Fault) -> None:
    codes = f" ({', '.join(fault.codes)})" if fault.codes else ""
    OUT.print(f"[bold]{escape(fault.name)}[/bold]{codes}", highlight=False)
    for key in ("cause", "remedy", "seen"):
        OUT.print(f"  {key + ':':8}{escape(getattr(fault, key))}", highlight=False, soft_wrap=True)


def _show(health: rooms.Health) -> None:
    m = health.machine
    OUT.print(f"[bold]edgeforge[/bold] {health.edgeforge} on {escape(m.system)}: {escape(m.cpu)}, {m.cores} cores "
              f"({' '.join(m.flags)}), {_gib(m.ram)} memory ({_gib(m.ram_free)} free), {_gib(m.disk_free)} disk free",
              highlight=False, soft_wrap=True)
    tools = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for tool in health.tools:
        state = tool.version or "[dim]not installed[/dim]"
        tools.add_row(f"  {escape(tool.name)}", state, escape(tool.problem or tool.detail))
    chips = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    actions = [f.name for f in dataclasses.fields(Abilities)]
    for name in ("chip", *actions):
        chips.add_column(name, header_style="bold")
    for names, able in _alike(health.chips):
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        chips.add_row(names[0] + more, *("no" if getattr(able, a) else "yes" for a in actions))
    OUT.print(tools, chips)
    reasons = {f"{a}: {why}" for able in health.chips.values() for a in actions if (why := getattr(able, a))}
    for reason in sorted(reasons):
        OUT.print(f"  [dim]{escape(reason)}[/dim]", highlight=False, soft_wrap=True)
    for proof in health.proofs:
        mark = "[red]✗[/red]" if proof.problem else "[green]✓[/green]"
        OUT.print(f"{mark} {escape(proof.name)}, {proof.seconds:.1f} s  [dim]{escape(proof.detail)}[/dim]",
                  highlight=False, soft_wrap=True)
    for problem, fix in health.problems.items():
        OUT.print(f"[red]problem:[/red] {escape(problem)}", highlight=False, soft_wrap=True)
        if fix:
            OUT.print(f"    {escape(fix)}", highlight=False, soft_wrap=True)
    if not health.problems:
        OUT.print("no problems found")


def _alike(chips: Mapping[str, Abilities]) -> list[tuple[list[str], Abilities]]:
    """Chips that the same can be done for, together; `edgeforge targets` lists them all."""
    found: list[tuple[list[str], Abilities]] = []
    for name, able in chips.items():
        together = next((names for names, other in found if other == able), None)
        if together is None:
            found.append(([name], able))
        else:
            together.append(name)
    return found


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
