"""`edgeforge eval`: what a stage's model is worth on text that it was not calibrated on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from edgeforge import recipe
from edgeforge.cli import on as target
from edgeforge.cli.build import ALLOW_PICKLE
from edgeforge.cli.console import ERR, OUT

if TYPE_CHECKING:
    from edgeforge.evaluation.bootstrap import Estimate
    from edgeforge.evaluation.run import Evaluation

_COLUMNS = {"ppl_reference": ("ppl,\nfloat", ".2f"), "ppl": ("ppl", ".2f"), "ppl_ratio": ("ratio", ".3f"),
            "kl": ("KL,\nnats", ".4f"), "flips": ("flips", ".3f"), "sqnr": ("SQNR,\ndB", ".1f"),
            "centred_sqnr": ("centred,\ndB", ".1f")}
"""title and format of each figure; narrow, for a terminal of 80 columns"""


def evaluate(
    path: Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe file (YAML).")],
    stage: Annotated[str, typer.Option(
        help="Whose model: adapt, optimize, transform, quantize, split or bundle.")] = "bundle",
    on: Annotated[str, typer.Option(help=target.ON)] = "cpu",
    text: Annotated[list[Path] | None, typer.Option(
        help="A text or .jsonl file to evaluate on, too; may be repeated.")] = None,
    windows: Annotated[int, typer.Option(min=1, help="Pieces of text of each domain, at most.")] = 8,
    task: Annotated[str | None, typer.Option(help="A labelled task, too: hellaswag.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
    allow_pickle: Annotated[bool, typer.Option("--allow-pickle", help=ALLOW_PICKLE)] = False,
) -> None:
    """Measures a finished stage against the HuggingFace float model, with 95 % intervals; a row a domain."""
    from edgeforge.evaluation import run

    request = run.Request(stage, on, tuple(text or ()), windows, task)
    with ERR.status("") as status:
        found = run.evaluate(recipe.load(path), request, lambda said: status.update(escape(said)), allow_pickle)
    if as_json:
        print(json.dumps(run.plain(found), indent=1))
    else:
        _show(found)


def _show(found: Evaluation) -> None:
    table = Table("domain", *(title for title, _ in _COLUMNS.values()), "worst\ntoken", box=None, padding=(0, 1, 0, 0))
    for row in found.rows:
        cells = [_cell(row.figures[name], form) for name, (_, form) in _COLUMNS.items()]
        window, token = row.worst_at
        held = "\nnot held" if row.held is False else ""
        table.add_row(f"{escape(row.name)}[dim]\n{row.windows} windows{held}[/dim]", *cells,
                      f"{row.worst_token:.1f}\n[dim]{window}:{token}[/dim]")
    OUT.print(table, highlight=False)
    for name in found.empty:
        OUT.print(f"{escape(name)}: no window that neither calibration nor the gates have read", highlight=False,
                  soft_wrap=True)
    OUT.print("[dim]below a figure: its 95 % interval. not held: calibration has no text of this kind. "
              "worst token: dB, window:token[/dim]", highlight=False, soft_wrap=True)
    if found.caution:
        OUT.print(f"[dim]{escape(found.on)}: {escape(found.caution)}[/dim]", highlight=False, soft_wrap=True)
    if (task := found.task) is not None:
        OUT.print(f"{escape(task.name)}, {task.items} items: {_line(task.reference)} right with the float model, "
                  f"{_line(task.actual)} with {found.stage}: {_line(task.difference, '+.3f')}",
                  highlight=False, soft_wrap=True)


def _cell(of: Estimate, form: str) -> str:
    interval = "" if math.isnan(of.low) else f"\n[dim]{of.low:{form}}\n{of.high:{form}}[/dim]"
    return f"{of.value:{form}}{interval}"


def _line(of: Estimate, form: str = ".3f") -> str:
    return f"{of.value:{form}} ({of.low:{form}}…{of.high:{form}})"
