"""Both searches in turn on the cut graph, and the table of what they took and lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from edgeforge.errors import EdgeForgeError
from edgeforge.graph import store
from peer import compare, cut, job, ours
from peer.compare import Choices, Losses
from peer.prepare import Prepared

NAMES = {"same": "ours, 20 candidates", "own": "ours, own search", "theirs": "AIMET, 20 candidates"}
_HERE = Path(__file__).parents[1]
Spent = dict[str, float]


@dataclass(frozen=True)
class Plan:
    """block: of LPBQ; None for one step a channel. windows: of calibration text; all without. aimet: an interpreter."""

    block: int | None
    threads: int
    layers: int
    windows: int | None
    runs: int
    aimet: str


def run(ready: Prepared, plan: Plan, folder: Path, say: Callable[[str], None]) -> Iterator[str]:
    """The table's lines; folder is made for the job."""
    folder.mkdir()
    count = _write(ready, plan, folder)
    spent = dict(_race(plan, folder, say))
    yield (f"layers 1 to {plan.layers} of {ready.decoder.layers}, {count} windows, {plan.threads} thread(s), "
           f"the fastest of {plan.runs}")
    yield from _times(spent, ready.decoder.layers / plan.layers)
    yield from _losses(plan, folder)


def _write(ready: Prepared, plan: Plan, folder: Path) -> int:
    """Writes the job; returns how many windows it has."""
    windows = ready.windows[:plan.windows]
    if len(windows) < (plan.windows or 1):
        raise EdgeForgeError(f"{plan.windows} windows are asked for, calibration has {len(windows)}", "ask for fewer")
    model = store.load(ready.transform.folder)
    if not 0 < plan.layers <= ready.decoder.layers:
        raise EdgeForgeError(f"{plan.layers} layers are asked for, the model has {ready.decoder.layers}",
                             "--layers takes 1 to that many")
    cut.first(model, plan.layers, len(windows[0]))
    store.save(model, folder)
    job.save_feeds(folder, cut.samples(model.graph, ready.decoder, windows, ready.tables))
    job.Job(plan.block, plan.threads).save(folder)
    return len(windows)


def _race(plan: Plan, folder: Path, say: Callable[[str], None]) -> Iterator[tuple[str, Spent]]:
    """Every side's fastest run; the sides take turns, so that a busy minute does not fall on one alone."""
    seen: dict[str, list[Spent]] = {name: [] for name in NAMES}
    for turn in range(plan.runs):
        for name in NAMES:
            say(f"run {turn + 1} of {plan.runs}: {NAMES[name]}")
            _child(plan, folder, name)
            seen[name].append(json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))
    for name, runs in seen.items():
        yield name, {key: min(run[key] for run in runs) for key in runs[0]}


def _child(plan: Plan, folder: Path, name: str) -> None:
    """One search in a process of its own; AIMET's sees nothing of our environment but the bench."""
    path = str(_HERE) if name == "theirs" else os.pathsep.join([str(_HERE), *(p for p in sys.path if p)])
    command = ([plan.aimet, "-m", "peer.theirs", str(folder)] if name == "theirs" else
               [sys.executable, "-m", "peer.ours", str(folder), name])
    threads = str(plan.threads)
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads})
    if done.returncode:
        raise EdgeForgeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}",
                             "run it by hand" if name != "theirs" else "the bench was made for aimet-onnx 2.42.0")


def _times(spent: dict[str, Spent], scale: float) -> Iterator[str]:
    yield f"{'':24}{'CPU s':>9}{'wall s':>9}{'peak MiB':>10}{'all layers, CPU min':>21}"
    for name, run in spent.items():
        yield (f"{NAMES[name]:24}{run['cpu']:9.1f}{run['wall']:9.1f}{run['mib']:10.0f}{run['cpu'] * scale / 60:21.1f}"
               + (" (extrapolated by layers)" if scale > 1 else ""))
    for name in ("same", "own"):
        ratios = {key: spent["theirs"][key] / spent[name][key] for key in ("cpu", "wall", "mib")}
        yield (f"{'AIMET / ' + NAMES[name]:30}{ratios['cpu']:.1f}x CPU, {ratios['wall']:.1f}x wall, "
               f"{ratios['mib']:.1f}x peak")


def _losses(plan: Plan, folder: Path) -> Iterator[str]:
    torch.set_num_threads(plan.threads)
    graph = store.load(folder).graph
    samples = [{name: torch.from_numpy(array) for name, array in s.items()} for s in job.load_feeds(folder)]
    theirs = compare.chosen_by_aimet(folder, graph)
    shipped = {method: dict(np.load(folder / f"{method}.npz")) for method in ("same", "own")}
    with np.load(folder / "raw.npz") as archive:
        raw = dict(archive)
    floats = compare.totals(list(compare.on_float_inputs(graph, samples, theirs, shipped)))
    again = list(compare.on_their_inputs(graph, samples, theirs, raw, ours.grid(plan.block)))
    behind = compare.totals([losses for losses, _ in again])
    yield f"\nloss e'He, ours / AIMET's{'float inputs':>28}{'inputs that AIMET searched':>32}"
    yield f"{'':21}" + f"{'20 candidates':>18}{'own':>14}" * 2
    for kind, of in floats.items():
        yield f"{kind:21}" + "".join(_ratios(each) for each in (of, behind[kind]))
    yield from agreement([choices for _, choices in again])


def _ratios(of: Losses) -> str:
    """Both ratios; ! where ours is larger by more than the tolerance."""
    marks = [f"{mine / of.theirs:.5f}{'!' if mine > of.theirs * (1 + compare.TOLERANCE) else ' '}"
             for mine in (of.same, of.own)]
    return f"{marks[0]:>18}{marks[1]:>14}"


def agreement(found: Sequence[Choices]) -> Iterator[str]:
    """How often our search with AIMET's candidates is AIMET's."""
    for what, name in (("steps with the same candidate", "steps"), ("shipped integers equal", "integers"),
                       ("channel floats equal", "channels")):
        equal, count = (sum(getattr(one, name)[i] for one in found) for i in (0, 1))
        if count:
            yield f"{what:32}{equal:>9} of {count} ({equal / count:.4%})"
    ties = sum(one.ties for one in found)
    yield (f"another candidate won {ties} times where a weight lies half way between two codes "
           "(AIMET rounds up, ONNX and we to even)")
    gaps = [gap for one in found for gap in one.gaps]
    yield f"and {len(gaps)} times where none does" + (
        f": our loss is {min(gaps):+.1e} to {max(gaps):+.1e} of AIMET's away from it" if gaps else "")
