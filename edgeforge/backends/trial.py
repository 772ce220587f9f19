"""One graph before a vendor's compiler, in ever smaller pieces: what `edgeforge bisect` asks a backend for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edgeforge.backends.ending import Ending


@dataclass(frozen=True)
class Attempt:
    """What came of one try.

    ending: None when it compiled. outputs: .npz with one array a graph output; None without feeds.
    """

    ending: Ending | None
    outputs: Path | None


class Trial(Protocol):
    """One graph, the chip and the settings that it is compiled for.

    name: for a person. model: the ONNX file. feeds: .npz with one array a graph input; None: not known.
    known: how it failed in the build; None: not known. versions: of the tools that decide.
    """

    name: str
    model: Path
    feeds: Path | None
    known: Ending | None

    @property
    def versions(self) -> dict[str, str]: ...

    def write(self, model: Path, feeds: Path | None, folder: Path) -> str:
        """Puts what compiles model alone into folder, where model and feeds lie; returns the command that runs it."""
        ...

    def attempt(self, model: Path, feeds: Path | None, work: Path, timeout_s: float) -> Attempt:
        """Compiles model (and runs it on feeds) in a child process, inside work, a folder that it may fill."""
        ...
