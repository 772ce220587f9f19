"""A bundle's recorded calls as a set that a device replays."""

from __future__ import annotations

import importlib.metadata
import zlib
from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile

from edgeforge_runtime.errors import RunError
from edgeforge_runtime.manifest import Manifest, Part, Tensor, past_layer
from pydantic import ValidationError

from edgeforge import __version__
from edgeforge.errors import EdgeForgeError
from edgeforge.export import record
from edgeforge.export.record import Call
from edgeforge.recipe import Gates
from edgeforge.vectors import format as sets
from edgeforge.vectors.format import Expected, Recorded, TensorSpec, Tolerance

WHOLE, PARTS = "whole", "parts"
_TOOLS = ("onnxruntime", "onnxruntime-qnn", "numpy")


def make(folder: Path, out: Path) -> int:
    """Writes the vectors of the bundle at folder as a set at out; returns how many calls it holds.

    A call that was recorded of the whole model and of its parts is in the set once for each: the parts are what
    a device runs, the whole is what the bundle's CPU model runs.

    Raises:
        EdgeForgeError: no bundle, no vectors in it, or vectors that its manifest does not declare.
    """
    vectors = folder / "vectors"
    try:
        manifest = Manifest.load(folder)
        parts = {p.graph: (g.ar, p) for t in manifest.targets.values() for g in t.graphs for p in g.parts}
        calls = _calls(vectors, parts)
    except RunError as error:
        raise EdgeForgeError(str(error), "give the folder that `edgeforge build` made") from error
    except (OSError, ValueError, KeyError, EOFError, NotImplementedError, BadZipFile, zlib.error) as error:
        raise EdgeForgeError(f"{vectors}: {error}", "its vectors are damaged: build the bundle again") from error
    if not calls:
        raise EdgeForgeError(f"{vectors} holds no recorded calls", "build the bundle again with this version")
    graphs = []
    for name, recorded in calls.items():
        if name not in parts:
            raise EdgeForgeError(f"{vectors} has calls of {name}, a graph that {folder} does not declare",
                                 "vectors and manifest are of different builds")
        ar, part = parts[name]
        try:
            graphs.append((name, [_spec(t) for t in part.inputs], _outputs(ar, part), recorded))
        except ValidationError as error:
            raise EdgeForgeError(f"{folder}: graph {name}: {error.errors()[0]['loc'][0]}: {error.errors()[0]['msg']}",
                                 "no such tensor can be a test vector") from error
    sets.write(out, manifest.model.name, _versions(manifest), graphs)
    return sum(len(recorded) for recorded in calls.values())


def _calls(vectors: Path, parts: dict[str, tuple[int, Part]]) -> dict[str, list[Recorded]]:
    """The recorded calls by graph, in the order of their labels (ar128, ar1_0, ar1_1, ...)."""
    found: dict[str, list[Recorded]] = {}
    for place in sorted((vectors / WHOLE).iterdir()):
        call = record.load(place, 0)
        rows = next(a.shape[-1] for n, a in call.inputs.items() if n == "input_ids")
        names = [n for n, (ar, p) in parts.items() if ar == rows and {t.name for t in p.inputs} == set(call.inputs)]
        if not names:
            raise KeyError(f"{place.name}: no graph takes its {len(call.inputs)} inputs")
        found.setdefault(names[0], []).append(_recorded(place, call))
    for place in sorted((vectors / PARTS).iterdir()):
        for graph in sorted(place.iterdir()):
            found.setdefault(graph.name, []).append(_recorded(place, record.load(graph, 0)))
    return found


def _recorded(place: Path, call: Call) -> Recorded:
    return place.name, call.inputs, call.outputs


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(name=tensor.name, dtype=tensor.dtype, shape=tensor.shape,  # type: ignore[arg-type]
                      scale=tensor.scale, zero_point=tensor.zero_point)


def _outputs(ar: int, part: Part) -> Sequence[Expected]:
    """Judged as the build itself judges the emulator: decode closely, what went through all layers at once less so.

    A code of the cache that flips on its coarse grid costs more than a code of an activation.
    """
    limits, deep = Gates(), any(past_layer(t.name) for t in part.inputs)
    found = []
    for tensor in part.outputs:
        loose = tensor.name.startswith("past_") or (deep and ar > 1)
        tolerance = Tolerance(sqnr_db=limits.wide_db if loose else limits.emulator_db)
        found.append(Expected(**_spec(tensor).model_dump(), tolerance=tolerance))
    return found


def _versions(manifest: Manifest) -> dict[str, str]:
    found = {"edgeforge": __version__}
    for tool in _TOOLS:
        try:
            found[tool] = importlib.metadata.version(tool)
        except importlib.metadata.PackageNotFoundError:
            continue
    stage = manifest.stamps.get("stage.export")
    return found | ({"stage.export": stage} if stage else {})
