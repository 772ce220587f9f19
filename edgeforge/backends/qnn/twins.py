"""Is the device binary the same model as its x86 twin, and do its graphs really share their weights?

The weight-shared device binary cannot be loaded on x86, so what runs here is its unshared twin. Whatever
can be read from both must agree; what remains unseen (the shared binary executing) a report must say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from edgeforge.backends.qnn.binary import ContextBinary, GraphInfo
from edgeforge.backends.qnn.placement import Placement

Placements = Mapping[str, Placement]


@dataclass(frozen=True)
class Difference:
    """One disagreement. where: a graph, ``graph/tensor`` or "binary"."""

    where: str
    what: str
    device: str
    twin: str


@dataclass(frozen=True)
class Sharing:
    """Weight bytes of the device binary against the largest graph alone. Sizes in bytes.

    device_weights: shared once, plus what each graph keeps for itself. largest_graph, all_graphs: the
    largest twin graph's weights, and their sum: the ideal, and the price without sharing.
    """

    device_file: int
    twin_file: int
    device_weights: int
    largest_graph: int
    all_graphs: int

    @property
    def ratio(self) -> float:
        """device_weights / largest_graph: 1 when every weight is stored once."""
        return self.device_weights / self.largest_graph if self.largest_graph else 1.0


@dataclass(frozen=True)
class TwinReport:
    """differences must be empty. sharing is None when it cannot be claimed: fewer than two graphs were
    read back under the expected names, or the device binary holds no shared weights."""

    differences: tuple[Difference, ...]
    sharing: Sharing | None

    @property
    def equal(self) -> bool:
        return not self.differences


def compare_twins(
    device: ContextBinary,
    twin: ContextBinary,
    names: tuple[str, ...],
    device_ops: Placements | None = None,
    twin_ops: Placements | None = None,
) -> TwinReport:
    """Compares two binaries of one part.

    Args:
        names: the graphs that both must hold.
        device_ops, twin_ops: placements by graph name; their op counts are compared when both are given.
    """
    differences = list(_whole(device, twin, names))
    for name in names:
        sides = [[g for g in b.graphs if g.name == name] for b in (device, twin)]
        if sides[0] and sides[1]:
            differences += _graphs(sides[0][0], sides[1][0])
        if device_ops is not None and twin_ops is not None:
            counts = [dict(p[name].ops) if name in p else None for p in (device_ops, twin_ops)]
            if counts[0] != counts[1] or counts[0] is None:
                differences.append(Difference(name, "op counts", str(counts[0]), str(counts[1])))
    return TwinReport(tuple(differences), _sharing(device, twin, names))


def _whole(device: ContextBinary, twin: ContextBinary, names: tuple[str, ...]) -> Iterator[Difference]:
    expected = sorted(names)
    found = [sorted(g.name for g in b.graphs) for b in (device, twin)]
    if found != [expected, expected]:
        yield Difference("binary", f"graph names (expected {expected})", str(found[0]), str(found[1]))
    for field in ("soc_model", "dsp_arch", "build_id", "core_api", "backend_api"):
        pair = getattr(device, field), getattr(twin, field)
        if pair[0] != pair[1]:
            yield Difference("binary", field, str(pair[0]), str(pair[1]))


def _graphs(device: GraphInfo, twin: GraphInfo) -> Iterator[Difference]:
    for field in ("vtcm_bytes", "optimization", "io_bytes"):
        pair = getattr(device, field), getattr(twin, field)
        if pair[0] != pair[1]:
            yield Difference(device.name, field, str(pair[0]), str(pair[1]))
    for field in ("inputs", "outputs"):
        # Order counts: clients that feed by position exist, and equal compiles give equal order.
        ours, theirs = getattr(device, field), getattr(twin, field)
        names = [[t.name for t in side] for side in (ours, theirs)]
        if names[0] != names[1]:
            yield Difference(device.name, f"names of {field}", str(names[0]), str(names[1]))
            continue
        for a, b in zip(ours, theirs, strict=True):
            if a != b:
                yield Difference(f"{device.name}/{a.name}", "shape, dtype or encoding", str(a), str(b))


def _sharing(device: ContextBinary, twin: ContextBinary, names: tuple[str, ...]) -> Sharing | None:
    complete = all({g.name for g in b.graphs} == set(names) for b in (device, twin))
    if len(names) < 2 or not complete or not all(g.shared_bytes for g in device.graphs):
        return None
    shared = max(g.shared_bytes for g in device.graphs)  # each graph states the one shared block
    alone = [g.const_bytes + g.shared_bytes for g in twin.graphs]
    return Sharing(
        device_file=device.file_bytes,
        twin_file=twin.file_bytes,
        device_weights=shared + sum(g.const_bytes for g in device.graphs),
        largest_graph=max(alone),
        all_graphs=sum(alone),
    )
