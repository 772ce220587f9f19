"""`edgeforge run`: an answer from a bundle, through the runtime."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer
from edgeforge_runtime.typed import read_json
from rich.markup import escape

from edgeforge.cli import on as target
from edgeforge.cli.console import ERR
from edgeforge.report.record import REPORT


def run(
    bundle: Annotated[Path, typer.Argument(help="A bundle, or what adapt ... quantize or split left in the cache.")],
    prompt: Annotated[str, typer.Argument(help="What the user says.")],
    on: Annotated[str, typer.Option(help=target.ON)] = "cpu",
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to write.")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template.")] = False,
) -> None:
    """Answers a prompt with the quantized model, streamed."""
    from edgeforge_runtime.__main__ import main as answer

    if caution := target.caution(bundle, on):
        ERR.print(f"[dim]{escape(caution + _times(bundle))}[/dim]", highlight=False, soft_wrap=True)
    words = [str(bundle), "--on", on, "--max-tokens", str(max_tokens), "--temperature", str(temperature)]
    raise typer.Exit(answer([*words, *(["--raw"] if raw else []), "--", prompt]))


def _times(bundle: Path) -> str:
    """How slow it will be, from the build's own measurement."""
    # A bundle without a report, or with a damaged one, runs as well.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        stages = read_json(bundle / REPORT)["stages"]
        times = [f"{c['name'].partition(': emulator, ')[2]}: {c['value']:.0f} s" for s in stages for c in s["checks"]
                 if ": emulator, " in c["name"]]
        return f" ({'; '.join(times)})" if times else ""
    return ""
