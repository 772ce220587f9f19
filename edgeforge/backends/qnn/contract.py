"""Genie's rules for a set of parts, checked on the binaries themselves.

Genie checks little of this, and says less: a boundary tensor whose name differs on the two sides yields
wrong tokens without a word, and a part without attention_mask whose graph name lacks ``ar<AR>_cl<CL>``
crashes it (both tried, libGenie 1.21). So the rules are checked here, before it is asked.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgeforge.backends.qnn.binary import ContextBinary, GraphInfo, TensorInfo

IDS, EMBEDS, MASK, LOGITS = "input_ids", "inputs_embeds", "attention_mask", "logits"
ROTARY = ("position_ids_cos", "position_ids_sin", "swa_position_ids_cos", "swa_position_ids_sin")
_WIDTH = re.compile(r"ar(\d+)_cl(\d+)")
_CACHE = re.compile(r"^past_(?:key|value)_\d+_(in|out)$")
_ATTEND = 65535  # Genie writes raw codes: 65535 to attend, 0 not to


@dataclass(frozen=True)
class Breach:
    """One broken rule. where: graph or graph/tensor."""

    where: str
    rule: str


def contract_breaches(binaries: Sequence[ContextBinary]) -> list[Breach]:
    """What Genie would fail on, or silently get wrong; empty when the parts fit together.

    Args:
        binaries: all parts of one model; each holds the same widths.
    """
    found: list[Breach] = []
    widths: dict[tuple[int, int], list[GraphInfo]] = defaultdict(list)
    for graph in (g for b in binaries for g in b.graphs):
        match = _WIDTH.search(graph.name)
        if match is None:
            found.append(
                Breach(graph.name, "the name must hold ar<AR>_cl<CL>: Genie reads the width from it")
            )
        else:
            widths[int(match[1]), int(match[2])].append(graph)
    counts = {len(graphs) for graphs in widths.values()}
    if not counts and not found:
        found.append(Breach("binaries", "there are no graphs"))
    if len(counts) > 1:
        found.append(Breach("binaries", f"every width needs the same parts, got {sorted(counts)} graphs"))
    for (ar, cl), graphs in sorted(widths.items()):
        # Genie runs the graphs of one width in the order of their names as text.
        found += _chain(sorted(graphs, key=lambda g: g.name), ar, cl)
    found += _caches([g for graphs in widths.values() for g in graphs])
    return found


def _chain(graphs: Sequence[GraphInfo], ar: int, cl: int) -> Iterator[Breach]:
    """One width, first part to last: what each takes from the ones before."""
    made: dict[str, TensorInfo] = {}
    taken: set[str] = set()
    for graph in graphs:
        for tensor in graph.inputs:
            where = f"{graph.name}/{tensor.name}"
            taken.add(tensor.name)
            if tensor.name in made:
                if _value(tensor) != _value(made[tensor.name]):
                    yield Breach(
                        where, f"takes {_value(tensor)}, its maker gives {_value(made[tensor.name])}"
                    )
            elif not _known(tensor.name):
                yield Breach(where, "no earlier part (in the order of graph names) makes this input")
            else:
                yield from _input(tensor, where, ar, cl)
        made |= {t.name: t for t in graph.outputs}
    names = [g.name for g in graphs]
    if not {IDS, EMBEDS} & {t.name for t in graphs[0].inputs}:
        yield Breach(names[0], f"the first part (names sort as {names}) must take {IDS} or {EMBEDS}")
    logits = [t for t in graphs[-1].outputs if t.name == LOGITS]
    if not logits:
        yield Breach(names[-1], f"the last part (names sort as {names}) must make {LOGITS}")
    elif ar not in logits[0].dims[:-1]:
        yield Breach(f"{names[-1]}/{LOGITS}", f"must have all {ar} rows, is {logits[0].dims}")
    if MASK not in taken:
        yield Breach(f"ar{ar}_cl{cl}", f"no part takes {MASK}")
    for name in made.keys() - taken:
        if name != LOGITS and not _CACHE.match(name):
            yield Breach(f"ar{ar}_cl{cl}/{name}", "no later part takes this output")


def _input(tensor: TensorInfo, where: str, ar: int, cl: int) -> Iterator[Breach]:
    if tensor.name == IDS and (tensor.dims != (1, ar) or tensor.dtype != "int32"):
        yield Breach(where, f"must be int32 (1, {ar}), is {tensor.dtype} {tensor.dims}")
    if tensor.name == MASK:
        if tensor.dims != (1, 1, ar, cl):
            yield Breach(where, f"must be (1, 1, {ar}, {cl}), is {tensor.dims}")
        if tensor.dtype == "uint16" and tensor.zero_point != _ATTEND:
            yield Breach(
                where,
                f"zero point must be {_ATTEND}, the code that Genie writes for 'attend',"
                f" is {tensor.zero_point}",
            )
    if tensor.name in ROTARY and tensor.dims[:-1] != (1, 1, ar):
        yield Breach(where, f"must be (1, 1, {ar}, rotary dims / 2), is {tensor.dims}")
    if _CACHE.match(tensor.name) and cl - ar not in tensor.dims:
        yield Breach(where, f"must hold CL-AR = {cl - ar} positions, is {tensor.dims}")


def _caches(graphs: Sequence[GraphInfo]) -> Iterator[Breach]:
    """A cache tensor has one encoding: in, out, and in every width."""
    seen: dict[str, tuple[str, TensorInfo]] = {}
    for graph in graphs:
        for tensor in (*graph.inputs, *graph.outputs):
            if not _CACHE.match(tensor.name):
                continue
            stem = tensor.name.rsplit("_", 1)[0]
            first, other = seen.setdefault(stem, (graph.name, tensor))
            if (tensor.dtype, tensor.scale, tensor.offset) != (other.dtype, other.scale, other.offset):
                yield Breach(
                    f"{graph.name}/{tensor.name}", f"its encoding differs from {other.name} in {first}"
                )


def _known(name: str) -> bool:
    return name in (IDS, EMBEDS, MASK, *ROTARY) or bool(_CACHE.match(name) and name.endswith("_in"))


def _value(tensor: TensorInfo) -> tuple[object, ...]:
    return tensor.dims, tensor.dtype, tensor.scale, tensor.offset
