"""`edgeforge bisect`: what a compiler fails on, as small as it gets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from edgeforge import backends, targets
from edgeforge.backends.trial import Trial
from edgeforge.cli.console import ERR, OUT
from edgeforge.errors import EdgeForgeError, RecipeError

_SIGINT = 130


def bisect(
    target: Annotated[Path, typer.Argument(help="A failed compile job's folder, or a quantized ONNX file.")],
    out: Annotated[Path, typer.Option(help="Folder for the smallest piece.")] = Path("bisect"),
    chip: Annotated[str | None, typer.Option(help="For an ONNX file: the chip to compile for.")] = None,
    feeds: Annotated[Path | None, typer.Option(help="For an ONNX file: .npz with its inputs (else random).")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for each try; more than that hangs.")] = 300,
    numeric: Annotated[float | None, typer.Option(
        metavar="DB", help="Look for wrong numbers instead: an SQNR below this against the CPU.")] = None,
) -> None:
    """Cuts a graph that fails down to the smallest piece that fails in the same way, and keeps it with its inputs."""
    from edgeforge.bisect.run import NothingFails
    from edgeforge.bisect.run import bisect as search

    try:
        found = search(_trials(target, chip, feeds), out, timeout, numeric,
                       lambda text: ERR.print(escape(text), highlight=False, soft_wrap=True))
    except NothingFails as good:
        OUT.print(escape(good.message), highlight=False, soft_wrap=True)
        return
    verdict = ("stopped early; not tried again" if found.stopped else
               "fails alone, tried again from that folder" if found.verified else "did NOT fail when tried once more")
    for line in (f"{found.graph}: {found.units[0]} of {found.units[1]} units after {found.tries} tries: "
                 f"{', '.join(found.nodes[:8])}{' ...' if len(found.nodes) > 8 else ''}",
                 f"it {found.ending.words}", *(f"    {line}" for line in found.ending.lines),
                 f"in {found.folder} ({verdict}):", f"    cd {found.folder} && {found.command}"):
        OUT.print(escape(line), highlight=False, soft_wrap=True)
    if found.stopped:
        raise typer.Exit(_SIGINT)


def _trials(target: Path, chip: str | None, feeds: Path | None) -> list[Trial]:
    if target.is_dir():
        if chip is not None or feeds is not None:
            raise RecipeError("--chip and --feeds are for an ONNX file; a job's folder holds both")
        for name in backends.names():
            if (found := backends.backend(name).trials(target)) is not None:
                return list(found)
        raise EdgeForgeError(f"{target} holds no compile job",
                             "give <cache>/failed/<key>/<part>_<kind>, or an ONNX file")
    if not target.is_file():
        raise EdgeForgeError(f"{target} does not exist", "give a failed compile job's folder, or an ONNX file")
    if chip is None:
        raise RecipeError(f"{target}: which chip is it compiled for?", f"say it with --chip; {targets.LISTED}")
    wanted = targets.chip(chip)
    return [backends.backend(wanted.backend).trial(target, feeds, wanted)]
