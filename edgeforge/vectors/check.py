"""Verdicts over a set: is it whole, does a bundle replay it, did a device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from edgeforge_runtime.codes import decode
from edgeforge_runtime.errors import RunError
from edgeforge_runtime.executors import open_executor
from edgeforge_runtime.executors.base import Arrays
from edgeforge_runtime.manifest import Graph, Manifest, Part, Target
from edgeforge_runtime.plain import PlainManifest
from edgeforge_runtime.plain import load as load_manifest

from edgeforge.errors import EdgeForgeError
from edgeforge.metrics import sqnr_db
from edgeforge.vectors import format as sets
from edgeforge.vectors.format import CallFiles, Expected, GraphVectors, Tolerance, VectorSet


@dataclass(frozen=True)
class Verdict:
    """One output of one call against what was expected.

    sqnr_db: of the reals. lsb: largest difference of codes, None for floats. max_abs: of the reals.
    """

    graph: str
    call: str
    tensor: str
    sqnr_db: float
    lsb: int | None
    max_abs: float
    tolerance: Tolerance

    @property
    def passed(self) -> bool:
        limit = self.tolerance
        if limit.lsb is not None:
            return self.lsb is not None and self.lsb <= limit.lsb
        if limit.max_abs is not None:
            return self.max_abs <= limit.max_abs
        return limit.sqnr_db is not None and self.sqnr_db >= limit.sqnr_db

    @property
    def limit(self) -> str:
        """The tolerance in words."""
        limit = self.tolerance
        if limit.lsb is not None:
            return f"at most {limit.lsb} LSB"
        return f"at least {limit.sqnr_db:g} dB" if limit.sqnr_db is not None else f"at most {limit.max_abs:g} apart"


def inspect(folder: Path) -> tuple[VectorSet, int]:
    """The set, after every file of it was read and checked, and how many files that were.

    Raises:
        EdgeForgeError: the manifest or a file is missing, damaged, changed or not finite.
    """
    vectors = sets.load(folder)
    count = 0
    for graph in vectors.graphs:
        for call in graph.calls:
            count += len(inputs(folder, graph, call)) + len(outputs(folder, graph, call))
    return vectors, count


def inputs(folder: Path, graph: GraphVectors, call: CallFiles) -> Arrays:
    """What goes into a call."""
    return {t.name: sets.read(folder, t, call.inputs[t.name]) for t in graph.inputs}


def outputs(folder: Path, graph: GraphVectors, call: CallFiles) -> Arrays:
    """What should come out of a call."""
    return {t.name: sets.read(folder, t, call.outputs[t.name]) for t in graph.outputs}


def compare(graph: GraphVectors, call: CallFiles, expected: Arrays, made: Arrays) -> list[Verdict]:
    """Every output of one call against the expected one; a shape or dtype that differs is an EdgeForgeError."""
    verdicts = []
    for spec in graph.outputs:
        a, b = expected[spec.name], made[spec.name]
        if a.shape != b.shape or a.dtype != b.dtype:
            raise EdgeForgeError(f"{graph.graph}, call {call.label}: {spec.name} came as {b.dtype}{list(b.shape)}, "
                                 f"expected {a.dtype}{list(a.shape)}", "the set is of another build")
        verdicts.append(_verdict(graph.graph, call.label, spec, a, b))
    return verdicts


def replay(folder: Path, bundle: Path, on: str) -> list[Verdict]:
    """Runs every call that one of the bundle's targets can run; on: the target's name (cpu, htp).

    Raises:
        EdgeForgeError: the set or the bundle is damaged, they are of different builds, or a graph fails.
    """
    vectors, _ = inspect(folder)
    try:
        manifest = load_manifest(bundle)
        target, runnable = _target(vectors, manifest, bundle, on)
        executor = open_executor(target, bundle, exact=True)
    except RunError as error:
        raise EdgeForgeError(str(error), "give the bundle that the set was made from") from error
    verdicts = []
    try:
        for graph, step in zip(runnable, target.graphs, strict=True):
            for call in graph.calls:
                made = executor.run(step, inputs(folder, graph, call))
                verdicts += compare(graph, call, outputs(folder, graph, call), made)
    except RunError as error:
        raise EdgeForgeError(f"{bundle} on {on}: {error}") from error
    finally:
        executor.close()
    return verdicts


def device(folder: Path, written: Path) -> list[Verdict]:
    """What qnn-net-run wrote on a device: <graph>/Result_<n>/<tensor>_native.raw, or without <graph>/ for one graph.

    Graphs without a folder there were not run; at least one must have been.

    Raises:
        EdgeForgeError: the set is damaged, no graph of it was run, or an output is missing or of another size.
    """
    vectors, _ = inspect(folder)
    ran = [(g, written / g.graph) for g in vectors.graphs if (written / g.graph).is_dir()]
    if not ran and len(vectors.graphs) == 1 and (written / "Result_0").is_dir():
        ran = [(vectors.graphs[0], written)]
    if not ran:
        names = ", ".join(g.graph for g in vectors.graphs[:3])
        raise EdgeForgeError(f"{written} holds no results of the set's graphs ({names}, ...)",
                             "give the folder that qnn-net-run got as --output_dir; with a binary that holds "
                             "several graphs it writes <graph>/Result_<n>/")
    verdicts = []
    for graph, place in ran:
        for index, call in enumerate(graph.calls):
            made = {t.name: _device_tensor(place / f"Result_{index}", t) for t in graph.outputs}
            verdicts += compare(graph, call, outputs(folder, graph, call), made)
    return verdicts


def _device_tensor(place: Path, spec: Expected) -> np.ndarray:
    stems = dict.fromkeys((spec.name, sets.file_name(spec.name)))
    wanted = [place / sets.result_name(stem, spec.dtype) for stem in stems]
    path = next((p for p in wanted if p.is_file()), None)
    if path is not None:
        return sets.decoded(sets.raw_bytes(path, spec), spec)
    if any((place / f"{stem}.raw").is_file() for stem in stems):
        raise EdgeForgeError(f"{place} has {spec.name} as floats, not as {spec.dtype} codes",
                             "run qnn-net-run with --use_native_output_files")
    raise EdgeForgeError(f"{place} has no output {spec.name} ({wanted[-1].name})",
                         "did qnn-net-run finish, and with this set's input list?")


def _verdict(graph: str, call: str, spec: Expected, expected: np.ndarray, made: np.ndarray) -> Verdict:
    a, b = (_reals(spec, x) for x in (expected, made))
    codes = expected.dtype.kind in "iu"
    lsb = int(np.abs(expected.astype(np.int64) - made.astype(np.int64)).max()) if codes else None
    with np.errstate(invalid="ignore"):
        apart = float(np.abs(a - b).max())
    return Verdict(graph, call, spec.name, sqnr_db(a, b), lsb, math.inf if math.isnan(apart) else apart, spec.tolerance)


def _reals(spec: Expected, array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if spec.scale is None else decode(spec.declared, array).astype(np.float64)


def _target(vectors: VectorSet, manifest: Manifest | PlainManifest, bundle: Path,
            on: str) -> tuple[Target, list[GraphVectors]]:
    """The target's parts that the set has calls of, each as a graph of its own, and those calls."""
    target = manifest.targets.get(on)
    if target is None:
        raise EdgeForgeError(f"{bundle} has no target {on!r}", f"it has {', '.join(sorted(manifest.targets))}")
    parts = {p.graph: (g, p) for g in target.graphs for p in g.parts}
    runnable = [g for g in vectors.graphs if g.graph in parts]
    if not runnable:
        raise EdgeForgeError(f"target {on} of {bundle} has none of the set's graphs ({vectors.graphs[0].graph}, ...)",
                             "the set is of another bundle, or made for its other target (--on)")
    steps = []
    for vectors_of in runnable:
        graph, part = parts[vectors_of.graph]
        for what in _differences(vectors_of, part):
            raise EdgeForgeError(f"{part.graph}: {what}", "set and bundle are of different builds: make the set again")
        steps.append(Graph(graph.ar, graph.cl, (part,)))
    return Target(target.executor, tuple(steps), target.options), runnable


def _differences(vectors: GraphVectors, part: Part) -> Iterator[str]:
    for specs, declared in ((vectors.inputs, part.inputs), (vectors.outputs, part.outputs)):
        have = {t.name: t for t in declared}
        for spec in specs:
            if have.get(spec.name) != spec.declared:
                yield f"the set has {spec.declared}, the bundle {have.get(spec.name, 'no such tensor')}"
        if len(have) != len(specs):
            yield f"the bundle's graph has {len(have)} tensors where the set has {len(specs)}"
