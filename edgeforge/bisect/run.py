"""`edgeforge bisect`: from a graph that fails to the smallest piece of it that fails in the same way, kept on disk."""

from __future__ import annotations

import json
import shutil
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import onnx_ir as ir

from edgeforge import metrics
from edgeforge.backends.ending import Ending
from edgeforge.backends.trial import Trial
from edgeforge.bisect import values
from edgeforge.bisect.search import Set, smallest
from edgeforge.bisect.units import Pieces
from edgeforge.cache import whole as whole_folder
from edgeforge.errors import CompilerError, EdgeForgeError, UnsupportedError
from edgeforge.export.record import load_arrays, save_arrays

MODEL, INPUTS, REPRO = "model.onnx", "inputs.npz", "repro.json"


class NothingFails(CompilerError):
    """No graph is known to have failed, and none does."""


@dataclass(frozen=True)
class Found:
    """The piece in its folder. units: how many of how many. db: the worst output's, in numeric mode.

    verified: it failed in the same way once more, from that folder. stopped: Ctrl-C came first.
    """

    folder: Path
    graph: str
    ending: Ending
    units: tuple[int, int]
    nodes: tuple[str, ...]
    command: str
    tries: int
    verified: bool
    stopped: bool


def bisect(trials: Sequence[Trial], out: Path, timeout_s: float, below_db: float | None,
           say: Callable[[str], None]) -> Found:
    """Cuts down the first of the graphs that fails alone.

    Args:
        below_db: None asks for a compile that fails; a number, for outputs whose SQNR against the CPU is below it.
        timeout_s: for each try; a compile that takes longer hangs.

    Raises:
        EdgeForgeError: out holds something else, a model cannot be read or run on the CPU.
        CompilerError: no graph fails alone; NothingFails when that is no riddle.
    """
    if out.exists() and not (out / REPRO).is_file() and any(out.iterdir() if out.is_dir() else [out]):
        raise EdgeForgeError(f"{out} exists and is not a bisect's folder", "choose another --out")
    sound = True
    with tempfile.TemporaryDirectory(prefix="edgeforge-bisect-") as scratch:
        for trial in trials:
            hunt = _Hunt(trial, Path(scratch), timeout_s, below_db, say)
            if (ending := hunt.start()) is not None:
                return hunt.finish(ending, out)
            sound = sound and hunt.sound and trial.known is None
    what = f"below {below_db:g} dB" if below_db is not None else "refused, crashes or hangs"
    kind = NothingFails if sound else CompilerError
    raise kind(f"{', '.join(t.name for t in trials)}: nothing is {what} when compiled alone",
               "a failure elsewhere needs its graphs together, other inputs, or a longer --timeout")


class _Hunt:
    """One graph: its pieces, what flows through it, and the question asked of a piece."""

    def __init__(self, trial: Trial, scratch: Path, timeout_s: float, below_db: float | None,
                 say: Callable[[str], None]) -> None:
        self._trial, self._scratch, self._timeout, self._below, self._say = trial, scratch, timeout_s, below_db, say
        self._model = _load(trial.model)
        self.pieces = Pieces(self._model)
        self._values = values.compute(self._model, self.pieces.boundaries(), self._feeds(), scratch)
        self._zeros = {str(v.name): _zero(v) for v in self.pieces.boundaries()}
        self._seen: dict[Set, Ending | None] = {}
        self._wanted: Ending | None = None
        self.sound = False
        """the whole graph was tried and did not fail"""
        self._best: Set = tuple(range(len(self.pieces.units)))

    def start(self) -> Ending | None:
        """The whole graph's failure; None when it does not fail as it did in the build."""
        self._say(f"{self._trial.name}: {len(self._best)} units; the whole first, at most {self._timeout:.0f} s a try")
        ending, known = self._ask(self._best), self._trial.known
        self.sound = ending is None
        if ending is not None and known is not None and self._below is None and not ending.same(known):
            self._say(f"{self._trial.name}: alone it {ending.words}; in the build it {known.words}: another failure")
            return None
        if ending is not None and self._below is not None and ending.kind != "wrong":
            self._say(f"{self._trial.name}: it does not even compile: it {ending.words}")
            return None
        self._wanted = ending
        return ending

    def finish(self, ending: Ending, out: Path) -> Found:
        """Searches, and saves the smallest piece, or the best one so far when Ctrl-C comes."""
        stopped = False
        try:
            self._best = smallest(self._best, self._fails, self.pieces.holding(ending.nodes))
        except KeyboardInterrupt:
            stopped = True
            self._say("stopped; keeping the smallest piece so far")
        return self._save(out, stopped)

    def _feeds(self) -> values.Arrays:
        given = None
        if self._trial.feeds is not None:
            try:
                given = load_arrays(self._trial.feeds)
            except (OSError, ValueError, EOFError, NotImplementedError, MemoryError, BadZipFile, zlib.error) as error:
                raise EdgeForgeError(f"{self._trial.feeds} does not hold arrays (.npz): {error}") from error
        return values.feeds_for(self._model.graph, given)

    def _fails(self, chosen: Set) -> bool:
        new = chosen not in self._seen
        ending = self._ask(chosen)
        same = ending is not None and self._wanted is not None and ending.same(self._wanted)
        if same and len(chosen) < len(self._best):
            self._best = chosen
        if new:
            good = "compiles" if self._below is None else "agrees with the CPU"
            verdict = "fails the same way" if same else good if ending is None else f"another failure: {ending.words}"
            self._say(f"try {len(self._seen)}: {len(chosen)} of {len(self.pieces.units)} units: {verdict}")
        return same

    def _ask(self, chosen: Set) -> Ending | None:
        if chosen not in self._seen:
            work = self._scratch / "try"
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            self._seen[chosen] = self._attempt(*self._write(chosen, work), work)
        return self._seen[chosen]

    def _write(self, chosen: Set, folder: Path) -> tuple[Path, Path]:
        piece = self.pieces.model(chosen)
        values.declare(piece.graph, self._values)
        model, inputs = folder / MODEL, folder / INPUTS
        ir.save(piece, model, external_data="model.data", size_threshold_bytes=1024)
        save_arrays(inputs, {str(v.name): self._values[str(v.name)] for v in piece.graph.inputs})
        return model, inputs

    def _attempt(self, model: Path, inputs: Path, work: Path) -> Ending | None:
        if self._below is None:
            return self._trial.attempt(model, None, work, self._timeout).ending
        made = self._trial.attempt(model, inputs, work, self._timeout)
        if made.outputs is None:
            if made.ending is None:
                raise UnsupportedError(f"{self._trial.name} was compiled, and cannot be run on this machine",
                                       "leave --numeric out: what does not compile can be looked for")
            return made.ending
        worst, name = min((self._db(k, v), k) for k, v in load_arrays(made.outputs).items())
        words = f"is {worst:.1f} dB off the CPU in {name}"
        return Ending("wrong", words) if worst < self._below else None

    def _db(self, name: str, made: np.ndarray) -> float:
        zero = self._zeros[name]
        return metrics.sqnr_db(self._values[name].astype(np.float64) - zero, made.astype(np.float64) - zero)

    def _save(self, out: Path, stopped: bool) -> Found:
        """Writes the piece, and lets it fail once more from what was written (not after Ctrl-C)."""
        trial, best = self._trial, self._best
        with whole_folder(out) as folder:
            model, inputs = self._write(best, folder)
            command = trial.write(model, inputs, folder)
            ending = self._seen[best] or self._wanted
            if ending is None:
                raise CompilerError(f"{trial.name}: nothing failed")
            again = None if stopped else self._attempt(model, inputs, self._fresh())
            nodes = tuple(str(n.name) for i in best for n in self.pieces.units[i].nodes)
            found = Found(out, trial.name, ending, (len(best), len(self.pieces.units)), nodes, command,
                          len(self._seen), again is not None and again.same(ending), stopped)
            _describe(folder, found, trial)
        return found

    def _fresh(self) -> Path:
        work = self._scratch / "again"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        return work


def _load(path: Path) -> ir.Model:
    try:
        model = ir.load(path)
    except Exception as error:  # protobuf and onnx_ir raise their own unrelated classes
        raise EdgeForgeError(f"{path} is not a readable ONNX model: {error}") from error
    for index, node in enumerate(model.graph):
        node.name = node.name or f"{node.op_type}_{index}"
    return model


def _zero(value: ir.Value) -> float:
    """The code that stands for 0; 0 where the value is not on a grid that can be seen."""
    node = value.producer()
    if node is None or node.op_type != "QuantizeLinear" or len(node.inputs) < 3 or node.inputs[2] is None:
        return 0.0
    constant = node.inputs[2].const_value
    return float(constant.numpy().reshape(-1)[0]) if constant is not None else 0.0


def _describe(folder: Path, found: Found, trial: Trial) -> None:
    ending = found.ending
    facts = {"graph": found.graph, "ending": ending.kind, "words": ending.words, "lines": ending.lines,
             "refused": sorted(ending.nodes), "units": found.units, "nodes": found.nodes, "command": found.command,
             "verified": found.verified, "stopped_early": found.stopped, "versions": trial.versions}
    (folder / REPRO).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    said, nodes = ("\n".join(f"    {line}" for line in lines) for lines in (ending.lines, found.nodes))
    source = "what really flowed into it" if trial.feeds is not None else "what flowed into it from random inputs"
    versions = ", ".join(f"{k} {v}" for k, v in trial.versions.items())
    text = (f"# {found.graph}: {found.units[0]} of {found.units[1]} units\n\nIt {ending.words}.\n\n{said}\n\n"
            f"Its nodes:\n\n{nodes}\n\n{MODEL} is the piece, {INPUTS} {source}. Alone, in this folder:\n\n"
            f"    {found.command}\n\nSeen with {versions}.\n")
    (folder / "README.md").write_text(text, encoding="utf-8")
