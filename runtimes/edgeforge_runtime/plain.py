"""A plain graph: a bundle without a decode loop, whose graph is run once for each set of inputs.

Its manifest.json has a format of its own, so that nothing that expects a language model opens it by mistake.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from .codes import Array, decode, encode
from .errors import ExecutorError, ManifestError
from .executors import Executor, open_executor
from .manifest import FORMAT, NAME, PLAIN_FORMAT, Graph, Manifest, Part, Target, Tensor, parse, read, targets
from .typed import build


def one_graph(executor: str, part: Part, options: dict[str, str] | None = None) -> Target:
    """The target that holds this one graph. It reads no tokens, so its widths are 0."""
    return Target(executor, (Graph(0, 0, (part,)),), dict(options or {}))


@dataclass(frozen=True)
class PlainManifest:
    """A folder with one graph, for each target that can run it; paths are relative to the folder."""

    name: str
    targets: dict[str, Target]
    stamps: dict[str, str] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Writes manifest.json into folder."""
        text = json.dumps({"format": PLAIN_FORMAT, **asdict(self)}, indent=1, sort_keys=True)
        (folder / NAME).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> PlainManifest:
        """Reads manifest.json; ManifestError names the folder and what is wrong with it."""
        return parse(folder, read(folder, PLAIN_FORMAT), cls._of)

    @classmethod
    def _of(cls, raw: dict[str, Any]) -> PlainManifest:
        found = targets(raw)
        for name, one in found.items():
            if [len(g.parts) for g in one.graphs] != [1]:
                raise ValueError(f"target {name} holds not one graph in one part")
        return build(cls, {k: v for k, v in raw.items() if k != "format"}, targets=found)

    def part(self, on: str) -> Part:
        """The graph as one target holds it."""
        if on not in self.targets:
            raise ManifestError(f"{self.name} has no target {on!r}, only {', '.join(sorted(self.targets))}")
        return self.targets[on].graphs[0].parts[0]


def load(folder: Path) -> Manifest | PlainManifest:
    """The manifest of a folder, whichever of the two it holds; ManifestError like either's load."""
    raw = read(folder, FORMAT, PLAIN_FORMAT)
    return Manifest.load(folder) if raw["format"] == FORMAT else PlainManifest.load(folder)


class PlainSession:
    """Runs a plain graph: reals in, reals out, whatever codes the graph itself takes.

    Attributes:
        inputs, outputs: the graph's tensors by name, as the manifest declares them.
    """

    def __init__(self, target: Target, executor: Executor) -> None:
        self._graph = target.graphs[0]
        self._executor = executor
        self.inputs, self.outputs = self._graph.boundary()

    @classmethod
    def open(cls, folder: Path, on: str = "cpu", *, exact: bool = False, threads: int | None = None) -> Self:
        """Opens one target of the folder; the arguments are those of Session.open."""
        manifest = PlainManifest.load(folder)
        manifest.part(on)
        chosen = manifest.targets[on]
        return cls(chosen, open_executor(chosen, folder, exact=exact, threads=threads))

    def run(self, feeds: dict[str, npt.NDArray[np.generic]]) -> dict[str, Array]:
        """One run: an array for each input, in its own shape; reals for quantized inputs.

        Raises:
            ExecutorError: an input is missing or has another shape.
        """
        if missing := sorted(set(self.inputs) - set(feeds)):
            raise ExecutorError(f"no array for {', '.join(missing)}")
        made = self.run_codes({name: self.encode(t, feeds[name]) for name, t in self.inputs.items()})
        return {n: made[n] if t.scale is None else decode(t, made[n]) for n, t in self.outputs.items()}

    def run_codes(self, feeds: dict[str, Array]) -> dict[str, Array]:
        """One run on codes: integers in, integers out."""
        return self._executor.run(self._graph, feeds)

    @staticmethod
    def encode(tensor: Tensor, array: npt.NDArray[np.generic]) -> Array:
        """An input's codes; integers and floats that have no grid only change their width."""
        return np.asarray(array, tensor.dtype) if tensor.scale is None else encode(tensor, array)

    def close(self) -> None:
        """Frees the executor; a second call does nothing."""
        self._executor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
