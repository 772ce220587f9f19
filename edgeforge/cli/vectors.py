"""`edgeforge vectors`: what a device has to reproduce, and whether it did."""

from __future__ import annotations

import dataclasses
import math
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from edgeforge.cli import on as target
from edgeforge.cli.console import ERR, OUT, line
from edgeforge.errors import GateError, RecipeError

if TYPE_CHECKING:
    from edgeforge.vectors.check import Verdict

app = typer.Typer(no_args_is_help=True, help="Test vectors that a device replays: raw files, input lists, a manifest.")
_SHOWN = 5


@app.command()
def make(
    bundle: Annotated[Path, typer.Argument(help="A bundle that `edgeforge build` made.")],
    out: Annotated[Path, typer.Argument(help="The folder to write; a set that is there is replaced.")],
) -> None:
    """Writes a bundle's recorded calls as raw files that qnn-net-run replays (--input_list, native files)."""
    from edgeforge.vectors import make as maker

    count = maker.make(bundle, out)
    OUT.print(f"{count} calls in [bold]{escape(str(out))}[/bold]", highlight=False)


@app.command()
def check(
    vectors: Annotated[Path, typer.Argument(metavar="SET", help="A folder that `vectors make` wrote.")],
    bundle: Annotated[Path | None, typer.Argument(help="Replay the set on this bundle.")] = None,
    on: Annotated[str, typer.Option(help=target.ON)] = "cpu",
    outputs: Annotated[Path | None, typer.Option(help="What a device wrote: qnn-net-run's --output_dir.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a tensor.")] = False,
) -> None:
    """Checks a set's files; replays it on a bundle, or judges a device's outputs. Exit 3: an output is off."""
    from edgeforge.vectors import check as checker

    if bundle is not None and outputs is not None:
        raise RecipeError("a bundle to replay on and --outputs of a device were both given", "give one of them")
    if outputs is not None:
        verdicts = checker.device(vectors, outputs)
    elif bundle is not None:
        if caution := target.caution(bundle, on):
            ERR.print(f"[dim]{escape(caution)}[/dim]", highlight=False, soft_wrap=True)
        verdicts = checker.replay(vectors, bundle, on)
    else:
        found, files = checker.inspect(vectors)
        OUT.print(f"{files} files of {len(found.graphs)} graphs are whole", highlight=False)
        return
    for key, group in groupby(verdicts, lambda v: (v.graph, v.call)):
        rows = list(group)
        if as_json:
            for row in rows:
                line(_plain(row))
        else:
            OUT.print(_summary(*key, rows), highlight=False, soft_wrap=True)
    _say_skipped(vectors, {v.graph for v in verdicts})
    if off := [v for v in verdicts if not v.passed]:
        named = (f"{v.graph} {v.call}: {_row(v)}" for v in off[:_SHOWN])
        raise GateError("\n  ".join([f"{len(off)} of {len(verdicts)} outputs are off:", *named]),
                        "the first graph and call that is off is where to look")


def _say_skipped(vectors: Path, ran: set[str]) -> None:
    from edgeforge.vectors import format as sets

    if skipped := [g.graph for g in sets.load(vectors).graphs if g.graph not in ran]:
        ERR.print(f"[dim]not run: {escape(', '.join(skipped))}[/dim]", highlight=False, soft_wrap=True)


def _summary(graph: str, call: str, rows: list[Verdict]) -> str:
    """One call: its worst output."""
    mark = "[green]✓[/green]" if all(r.passed for r in rows) else "[red]✗[/red]"
    worst = min(rows, key=lambda r: (r.passed, r.sqnr_db))
    return f"{mark} {escape(graph)} {escape(call)}: {len(rows)} outputs, worst {escape(_row(worst))}"


def _row(v: Verdict) -> str:
    codes = "" if v.lsb is None else f", {v.lsb} LSB"
    return f"{v.tensor} {v.sqnr_db:.1f} dB{codes} ({v.limit})"


def _plain(v: Verdict) -> dict[str, Any]:
    raw = dataclasses.asdict(v) | {"tolerance": v.tolerance.model_dump(exclude_none=True), "passed": v.passed}
    return {k: str(x) if isinstance(x, float) and not math.isfinite(x) else x for k, x in raw.items()}
