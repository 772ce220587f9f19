"""The command line: parse, call, render. One file a command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.markup import escape

from edgeforge import __version__, interrupt
from edgeforge.cli import bisect, build, check, doctor, eval, inspect, lock, recipe, run, selfcheck, targets, vectors
from edgeforge.cli.console import ERR, line
from edgeforge.errors import EXIT_ERROR, EdgeForgeError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
_SIGINT = 130
"""what a shell reports for a program that Ctrl-C ended"""


def _say_version(asked: bool) -> None:
    if asked:
        print(f"edgeforge {__version__}")
        raise typer.Exit


@app.callback()
def _start(
    _version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_say_version,
                                           help="Says which version this is.")] = False,
) -> None:
    """From a HuggingFace LLM to measured NPU binaries, on an ordinary machine."""


app.command("build")(build.build)
app.command("check")(check.check)
app.command("eval")(eval.evaluate)
app.command("run")(run.run)
app.command("selfcheck")(selfcheck.selfcheck)
app.command("bisect")(bisect.bisect)
app.command("doctor")(doctor.doctor)
app.command("targets")(targets.targets)
app.command("inspect")(inspect.inspect)
app.add_typer(recipe.app, name="recipe")
app.add_typer(lock.app, name="lock")
app.add_typer(vectors.app, name="vectors")


def main() -> None:
    """Entry point: exit 0 done, 1 error, 2 usage, 3 gate failed, 130 Ctrl-C; no traceback for what a user can cause."""
    interrupt.listen()
    code = _guarded(lambda: app(standalone_mode=False))
    if code == _SIGINT:
        # Where Ctrl-C has passed through C code that ran Python, an ordinary exit raises the signal once more.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _guarded(call: Callable[[], Any]) -> int:
    try:
        code = call()
        return _interrupted() if code == _SIGINT else code if isinstance(code, int) else 0
    except EdgeForgeError as error:
        return _tell(error.message, error.hint, error.exit_code)
    except KeyboardInterrupt:
        return _interrupted()
    except Exception as error:
        if interrupt.asked():  # inside an extension's import it arrives as whatever that import raises
            return _interrupted()
        if (show := getattr(error, "show", None)) is not None:  # click's usage errors
            show()
            return int(getattr(error, "exit_code", EXIT_ERROR))
        raise


def _tell(message: str, hint: str, code: int) -> int:
    """An error for a person, and for a program that asked for JSON."""
    ERR.print(f"[red]error:[/red] {escape(message)}", soft_wrap=True, highlight=False)
    if hint:
        ERR.print(f"[dim]hint: {escape(hint)}[/dim]", soft_wrap=True, highlight=False)
    if "--json" in sys.argv:
        line({"event": "error", "exit": code, "message": message, "hint": hint})
    return code


def _interrupted() -> int:
    return _tell("interrupted", "finished stages stay cached", _SIGINT)
