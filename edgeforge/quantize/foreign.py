"""Grids that another tool chose: which of them a graph can take.

The file decides steps and zero points. How many bits a value has and which values share a grid stay what they are
without it (assign.py, roles.py): a grid that breaks one of these would make a float island of the ops around it, or
wrong numbers, and is refused. What an op or the contract with the runtime fixes stays, too: those grids hold every
value that there can be, so that nothing is lost by them, and other tools name grids of their own there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from edgeforge.encoding import TOP, Encoding, equal, expansion, input_axis
from edgeforge.encodings import Table, per_tensor
from edgeforge.errors import EdgeForgeError
from edgeforge.graph import edit
from edgeforge.quantize import assign, roles

_SHOWN = 10
_WEIGHT_BITS = (4, 8, 16)


@dataclass(frozen=True)
class Given:
    """Grids by the names of a graph's values, which they can have; fixed: values that the file names and that keep
    their own."""

    table: Table
    fixed: tuple[str, ...] = ()


def take(graph: ir.Graph, given: Mapping[str, Encoding], grids: assign.Grids, exact: Mapping[str, assign.Range]
         ) -> Given:
    """What of given its values can have.

    Args:
        exact: graph inputs whose grid has to end at these reals.

    Raises:
        EdgeForgeError: grids that cannot be, each with the reason.
    """
    groups = list(roles.groups(graph))
    fixed = dict.fromkeys(name for group in groups for name in _fixed(group, given, grids, exact))
    left = {name: e for name, e in given.items() if name not in fixed}
    wrong = [line for group in groups for line in _group(group, left, grids)]
    if wrong:
        more = f"\n  and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise EdgeForgeError(f"cannot take {len(wrong)} of the file's encodings:" + "".join(
            f"\n  {line}" for line in wrong[:_SHOWN]) + more,
            "mend these entries, or take them out: what the file does not name gets a grid here")
    return Given(Table(left), tuple(fixed))


def together(graph: ir.Graph, given: Mapping[str, Encoding]) -> int:
    """How many values have no entry of their own and take that of one which they share a grid with."""
    found = 0
    for group in roles.groups(graph):
        named = sum(str(v.name) in given for v in group)
        found += len(group) - named if named and not any(map(_is_weight, group)) else 0
    return found


def _is_weight(value: ir.Value) -> bool:
    return roles.weight_axis(value) is not None


def _fixed(group: list[ir.Value], given: Mapping[str, Encoding], grids: assign.Grids,
           exact: Mapping[str, assign.Range]) -> Iterator[str]:
    """The names that have another grid than the one that is fixed for their group."""
    ends = next((exact[n] for v in group if (n := str(v.name)) in exact), assign.fixed(group))
    if ends is not None:
        own = per_tensor(*ends, assign.kind(group, grids).bits)
        yield from (n for v in group if (n := str(v.name)) in given and not equal(given[n], own))


def _group(group: list[ir.Value], given: Mapping[str, Encoding], grids: assign.Grids) -> Iterator[str]:
    """What cannot be."""
    named = [v for v in group if str(v.name) in given]
    weight = next(filter(_is_weight, group), None)
    if weight is not None:
        for value in named:
            axis = roles.weight_axis(value)
            wrong = (f"it is {weight.name} moved, and that has the grid" if axis is None else
                     _weight(value, axis, given[str(value.name)]))
            if wrong:
                yield f"{value.name}: {wrong}"
    elif named:
        first, *others = (str(v.name) for v in named)
        if other := next((n for n in others if not equal(given[n], given[first])), None):
            yield f"{first} and {other} lie on one grid here (codes pass between them unchanged), and have two"
        if wrong := _value(assign.kind(group, grids), given[first]):
            yield f"{first}: {wrong}"


def _weight(value: ir.Value, axis: int, e: Encoding) -> str:
    """Why a weight cannot lie on e; empty when it can."""
    if e.bits not in _WEIGHT_BITS:
        return f"{e.bits} bits; a weight has {', '.join(map(str, _WEIGHT_BITS))}"
    if e.block is None:
        return "" if e.axis in (None, axis) else f"scales along axis {e.axis}, and its outputs are axis {axis}"
    inputs = input_axis(len(edit.known_dims(value)), axis)
    if e.axis != inputs or (e.block_scale is not None and e.channel != axis):
        return f"blocks along axis {e.axis}, and its inputs are axis {inputs}, its outputs axis {axis}"
    if not roles.takes_blocks(value):
        return "it is in blocks; only 1x1 convolutions and MatMuls take blocks"
    return "" if e.block_scale is None else _expansion(e, axis)


def _expansion(e: Encoding, axis: int) -> str:
    """The compiler reads the whole numbers off the steps, and takes a channel's largest for TOP."""
    try:
        same = bool((expansion(e.steps(), axis) == e.block_scale).all())
    except ValueError as error:
        return str(error)
    return "" if same else f"the largest block scale of a channel is not {TOP}"


def _value(wanted: assign.Kind, e: Encoding) -> str:
    """Why values that are no weights cannot lie on e; empty when they can."""
    if e.axis is not None:
        return f"scales along axis {e.axis}; {wanted.what} has one for all of it"
    if e.bits != wanted.bits:
        return f"{e.bits} bits; {wanted.what} has {wanted.bits} here"
    return f"asymmetric; {wanted.what} is symmetric" if wanted.symmetric and not e.symmetric else ""


def raised(given: Mapping[str, Encoding], table: Mapping[str, Encoding]) -> list[str]:
    """The names whose grid in the finished table is not the given one (see floors.py)."""
    return [name for name, e in given.items() if not equal(e, table[name])]
