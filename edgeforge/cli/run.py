"""`edgeforge run`: an answer from a bundle, through the runtime."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from edgeforge.cli.console import ERR
from edgeforge.report.record import REPORT


def run(
    bundle: Annotated[Path, typer.Argument(help="A bundle, or what adapt ... quantize or split left in the cache.")],
    prompt: Annotated[str, typer.Argument(help="What the user says.")],
    on: Annotated[Literal["cpu", "htp"], typer.Option(help="cpu, or htp: Qualcomm's emulator (slow).")] = "cpu",
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to write.")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template.")] = False,
) -> None:
    """Answers a prompt with the quantized model, streamed."""
    from edgeforge_runtime.__main__ import main as answer

    if on == "htp":
        _warn_of_emulator(bundle)
    words = [str(bundle), "--on", on, "--max-tokens", str(max_tokens), "--temperature", str(temperature)]
    raise typer.Exit(answer([*words, *(["--raw"] if raw else []), "--", prompt]))


def _warn_of_emulator(bundle: Path) -> None:
    """Says how slow it will be, from the build's own measurement."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # a bundle without a report runs as well
        stages = json.loads((bundle / REPORT).read_text(encoding="utf-8"))["stages"]
        times = [f"{c['name'].partition(': emulator, ')[2]}: {c['value']:.0f} s" for s in stages for c in s["checks"]
                 if ": emulator, " in c["name"]]
        ERR.print(f"[dim]Qualcomm's HTP emulator on this CPU, not a device ({'; '.join(times)})[/dim]", highlight=False)
