"""`edgeforge build`: the stages as they go by."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from edgeforge import pipeline, recipe
from edgeforge.cli.console import ERR, OUT, line
from edgeforge.gates import Check, figure

ALLOW_PICKLE = "Read weights from .bin or .pt files too (tensors only: no code in them is run)."


def build(
    path: Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe file (YAML).")],
    lock: Annotated[Path | None, typer.Option(help="A bundle's lock: build the same bytes, or say why not.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line instead of text.")] = False,
    allow_pickle: Annotated[bool, typer.Option("--allow-pickle", help=ALLOW_PICKLE)] = False,
) -> None:
    """Builds a bundle: every stage measured, finished stages reused. Exit 3: a gate failed."""
    screen = Screen()
    try:
        out = pipeline.build(recipe.load(path), tell_json if as_json else screen.tell, lock, allow_pickle)
    finally:
        screen.close()
    if as_json:
        line({"event": "built", "out": str(out)})
    else:
        OUT.print(f"built [bold]{escape(str(out))}[/bold]; the measurements are in report.html there")


class Screen:
    """Stages as they go by."""

    def __init__(self) -> None:
        self._status = ERR.status("")

    def close(self) -> None:
        """Gives the terminal back."""
        self._status.stop()

    def tell(self, event: pipeline.Event) -> None:
        if event.kind in ("started", "step"):
            self._status.update(f"[bold]{event.stage}[/bold] {escape(event.text)}")
            self._status.start()
            return
        self._status.stop()
        if event.kind == "warning":
            ERR.print(f"[yellow]warning:[/yellow] {escape(event.text)}", soft_wrap=True, highlight=False)
            return
        if event.kind == "damaged":
            ERR.print(f"[yellow]damaged, made again:[/yellow] {escape(event.text)}", soft_wrap=True, highlight=False)
            return
        cost = f"{event.seconds:.1f} s, {event.peak_mib} MiB"
        state = "cached" if event.kind == "cached" else cost
        OUT.print(f"[bold]{event.stage:10}[/bold] [dim]{state}[/dim]")
        if event.kind in ("done", "failed"):
            for check in event.checks:
                OUT.print(_render(check), highlight=False)


def _render(check: Check) -> str:
    bound = f"  [dim]({check.bound})[/dim]" if check.bound else ""
    mark = " " if check.threshold is None else "[green]✓[/green]" if check.passed else "[red]✗[/red]"
    note = f"  [dim]{escape(check.note)}[/dim]" if check.note else ""
    name = check.name.partition(": ")[2]
    return f"  {mark} {escape(name)}: {figure(check.value)} {check.unit}{bound}{note}"


def tell_json(event: pipeline.Event) -> None:
    if event.kind != "step":
        line({"event": event.kind, "stage": event.stage, "text": event.text, "seconds": round(event.seconds, 2),
               "peak_mib": event.peak_mib, "checks": [_plain(c) | {"passed": c.passed} for c in event.checks]})


def _plain(check: Check) -> dict[str, Any]:
    raw = dataclasses.asdict(check)
    return raw if math.isfinite(check.value) else raw | {"value": str(check.value)}
