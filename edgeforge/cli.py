"""The command line: parse, call, render."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape

from edgeforge import pipeline, recipe
from edgeforge.errors import EXIT_ERROR, EdgeForgeError
from edgeforge.gates import Check

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
                  help="From a HuggingFace LLM to measured NPU binaries, on an ordinary machine.")
_out, _err = Console(), Console(stderr=True)
_SIGINT = 130
"""what a shell reports for a program that Ctrl-C ended"""


@app.callback()
def _root() -> None:
    """Commands: build, run."""


@app.command()
def build(
    path: Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe file (YAML).")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line instead of text.")] = False,
) -> None:
    """Builds a bundle: every stage measured, finished stages reused. Exit 3: a gate failed."""
    screen = _Screen()
    try:
        out = pipeline.build(recipe.load(path), _tell_json if as_json else screen.tell)
    finally:
        screen.close()
    if as_json:
        _line({"event": "built", "out": str(out)})
    else:
        _out.print(f"built [bold]{escape(str(out))}[/bold]; the measurements are in report.html there")


@app.command()
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
    from edgeforge_runtime.errors import ManifestError
    from edgeforge_runtime.manifest import Manifest

    with contextlib.suppress(ManifestError):  # the runtime reports a bad bundle itself
        stamps = Manifest.load(bundle).stamps
        times = "; ".join(f"{k.removeprefix('emulator, ')}: {v}" for k, v in stamps.items() if k.startswith("emulator"))
        if times:
            _err.print(f"[dim]Qualcomm's HTP emulator on this CPU, not a device ({times})[/dim]", highlight=False)


class _Screen:
    """Stages as they go by."""

    def __init__(self) -> None:
        self._status = _err.status("")

    def close(self) -> None:
        """Gives the terminal back."""
        self._status.stop()

    def tell(self, event: pipeline.Event) -> None:
        if event.kind in ("started", "step"):
            self._status.update(f"[bold]{event.stage}[/bold] {escape(event.text)}")
            self._status.start()
            return
        self._status.stop()
        cost = f"{event.seconds:.1f} s, {event.peak_mib} MiB"
        state = "cached" if event.kind == "cached" else cost
        _out.print(f"[bold]{event.stage:10}[/bold] [dim]{state}[/dim]")
        if event.kind in ("done", "failed"):
            for check in event.checks:
                _out.print(_render(check), highlight=False)


def _render(check: Check) -> str:
    bound = "" if check.threshold is None else f"  [dim]({check.sense} {check.threshold:g})[/dim]"
    mark = " " if check.threshold is None else "[green]✓[/green]" if check.passed else "[red]✗[/red]"
    note = f"  [dim]{escape(check.note)}[/dim]" if check.note else ""
    name = check.name.partition(": ")[2]
    return f"  {mark} {escape(name)}: {check.value:.4g} {check.unit}{bound}{note}"


def _tell_json(event: pipeline.Event) -> None:
    if event.kind != "step":
        _line({"event": event.kind, "stage": event.stage, "seconds": round(event.seconds, 2),
               "peak_mib": event.peak_mib, "checks": [_plain(c) | {"passed": c.passed} for c in event.checks]})


def _plain(check: Check) -> dict[str, Any]:
    raw = dataclasses.asdict(check)
    return raw if math.isfinite(check.value) else raw | {"value": str(check.value)}


def _line(row: dict[str, Any]) -> None:
    print(json.dumps(row), flush=True)


def main() -> None:
    """Entry point: exit 0 done, 1 error, 2 usage, 3 gate failed, 130 Ctrl-C; no traceback for what a user can cause."""
    sys.exit(_guarded(lambda: app(standalone_mode=False)))


def _guarded(call: Callable[[], Any]) -> int:
    try:
        code = call()
        return _interrupted() if code == _SIGINT else code if isinstance(code, int) else 0
    except EdgeForgeError as error:
        _err.print(f"[red]error:[/red] {escape(error.message)}", soft_wrap=True, highlight=False)
        if error.hint:
            _err.print(f"[dim]hint: {escape(error.hint)}[/dim]", soft_wrap=True, highlight=False)
        return error.exit_code
    except KeyboardInterrupt:
        return _interrupted()
    except Exception as error:
        if _was_interrupted(error):
            return _interrupted()
        if (show := getattr(error, "show", None)) is not None:  # click's usage errors
            show()
            return int(getattr(error, "exit_code", EXIT_ERROR))
        raise


def _was_interrupted(error: BaseException | None) -> bool:
    """Ctrl-C inside a C extension's import arrives wrapped in whatever that import raises."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _interrupted() -> int:
    _err.print("interrupted; finished stages stay cached")
    return _SIGINT
