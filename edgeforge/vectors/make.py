"""A bundle's recorded calls as a set that a device replays."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from edgeforge_runtime.errors import RunError
from edgeforge_runtime.manifest import Part, Target, Tensor, past_layer
from edgeforge_runtime.plain import PlainManifest
from edgeforge_runtime.plain import load as load_manifest
from pydantic import ValidationError

from edgeforge import lock
from edgeforge.errors import EdgeForgeError
from edgeforge.export import record
from edgeforge.export.record import Call
from edgeforge.vectors import format as sets
from edgeforge.vectors.format import Expected, Recorded, TensorSpec, Tolerance

WHOLE, PARTS = "whole", "parts"
_AGAIN = "build the bundle again"


@dataclass(frozen=True)
class _Limits:
    """The build's own gates, dB."""

    emulator: float
    wide: float


def make(folder: Path, out: Path) -> int:
    """Writes the vectors of the bundle at folder as a set at out; returns how many calls it holds.

    A plain graph's calls are samples. A call that was recorded of a whole language model and of its parts is in
    the set once for each: the parts are what a device runs, the whole is what the bundle's CPU model runs.

    Raises:
        EdgeForgeError: no bundle, no vectors in it, or vectors that its manifest does not declare.
    """
    vectors = folder / "vectors"
    try:
        manifest = load_manifest(folder)
        parts = {p.graph: (g.ar, p) for t in manifest.targets.values() for g in t.graphs for p in g.parts}
        if isinstance(manifest, PlainManifest):
            name, calls = manifest.name, _samples(vectors, manifest.part("cpu").graph)
        else:
            name, calls = manifest.model.name, _calls(vectors, parts, manifest.targets["cpu"])
    except RunError as error:
        raise EdgeForgeError(str(error), "give the folder that `edgeforge build` made") from error
    except (OSError, ValueError, KeyError, EOFError, NotImplementedError, MemoryError, BadZipFile,
            zlib.error) as error:
        raise EdgeForgeError(f"{vectors}: {error}", f"its vectors are damaged: {_AGAIN}") from error
    if not calls:
        raise EdgeForgeError(f"{vectors} holds no recorded calls", f"{_AGAIN} with this version")
    locked = lock.load(folder)
    limits = _limits(folder, locked)
    graphs = [_graph(folder, graph, parts, limits, recorded) for graph, recorded in calls.items()]
    sets.write(out, name, _versions(locked, manifest.stamps), graphs)
    return sum(len(recorded) for recorded in calls.values())


def _graph(folder: Path, name: str, parts: Mapping[str, tuple[int, Part]], limits: _Limits,
           recorded: Sequence[Recorded]) -> tuple[str, list[TensorSpec], Sequence[Expected], Sequence[Recorded]]:
    if name not in parts:
        raise EdgeForgeError(f"{folder} has vectors of {name}, a graph that its manifest does not declare",
                             "vectors and manifest are of different builds")
    ar, part = parts[name]
    try:
        return name, [_spec(t) for t in part.inputs], _outputs(ar, part, limits), recorded
    except ValidationError as error:
        raise EdgeForgeError(f"{folder}: graph {name}: {error.errors()[0]['loc'][0]}: {error.errors()[0]['msg']}",
                             "no such tensor can be a test vector") from error


def _calls(vectors: Path, parts: dict[str, tuple[int, Part]], cpu: Target) -> dict[str, list[Recorded]]:
    """The recorded calls by graph, in the order of their labels (ar128, ar1_0, ar1_1, ...). The whole model's are the
    CPU target's: another target may take inputs of the same names in other types."""
    recorded = {p.graph for g in cpu.graphs for p in g.parts}
    found: dict[str, list[Recorded]] = {}
    for place in sorted((vectors / WHOLE).iterdir()):
        call = record.load(place, 0)
        rows = next(a.shape[-1] for n, a in call.inputs.items() if n == "input_ids")
        names = [n for n, (ar, p) in parts.items()
                 if n in recorded and ar == rows and {t.name for t in p.inputs} == set(call.inputs)]
        if not names:
            raise KeyError(f"{place.name}: no graph takes its {len(call.inputs)} inputs")
        found.setdefault(names[0], []).append(_recorded(place, call))
    if not (vectors / PARTS).is_dir():  # the target takes the graph whole
        return found
    for place in sorted((vectors / PARTS).iterdir()):
        for graph in sorted(place.iterdir()):
            found.setdefault(graph.name, []).append(_recorded(place, record.load(graph, 0)))
    return found


def _samples(vectors: Path, graph: str) -> dict[str, list[Recorded]]:
    """The recorded calls of a plain graph."""
    return {graph: [_recorded(place, record.load(place, 0)) for place in sorted(vectors.iterdir())]}


def _recorded(place: Path, call: Call) -> Recorded:
    return place.name, call.inputs, call.outputs


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(name=tensor.name, dtype=tensor.dtype, shape=tensor.shape,  # type: ignore[arg-type]
                      scale=tensor.scale, zero_point=tensor.zero_point)


def _outputs(ar: int, part: Part, limits: _Limits) -> Sequence[Expected]:
    """Judged as the build itself judged the emulator: decode closely, what went through all layers at once less so.

    A code of the cache that flips on its coarse grid costs more than a code of an activation.
    """
    deep = any(past_layer(t.name) for t in part.inputs)
    found = []
    for tensor in part.outputs:
        loose = tensor.name.startswith("past_") or (deep and ar > 1)
        tolerance = Tolerance(sqnr_db=limits.wide if loose else limits.emulator)
        found.append(Expected(**_spec(tensor).model_dump(), tolerance=tolerance))
    return found


def _limits(folder: Path, locked: Mapping[str, Any]) -> _Limits:
    try:
        gates = locked["inputs"]["recipe"]["gates"]
        return _Limits(float(gates["emulator_db"]), float(gates["wide_db"]))
    except (KeyError, TypeError, ValueError) as error:
        raise EdgeForgeError(f"{folder / lock.FILE} does not say which gates the build had", _AGAIN) from error


def _versions(locked: Mapping[str, Any], stamps: Mapping[str, str]) -> dict[str, str]:
    """Of what recorded the calls, as the lock holds them, and the stage that did."""
    known = {"edgeforge": locked["inputs"].get("edgeforge"), **(locked["inputs"].get("tools") or {}),
             "stage.export": stamps.get("stage.export")}
    return {name: str(version) for name, version in known.items() if version}
