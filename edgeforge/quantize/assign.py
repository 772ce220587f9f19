"""From ranges to encodings: which grid each value of a float graph gets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir
from edgeforge_runtime.manifest import COS, SIN, SWA_COS, SWA_SIN, past_layer

from edgeforge import encodings
from edgeforge.encodings import Encoding, Table, reals
from edgeforge.errors import EdgeForgeError
from edgeforge.graph import edit
from edgeforge.graph.requantize import is_operand
from edgeforge.quantize import roles
from edgeforge.quantize.weights.grid import per_channel

Range = tuple[float, float]

_ROPE_ROWS = {name: pair for pair in ((COS, SIN), (SWA_COS, SWA_SIN)) for name in pair}
"""graph inputs that are rows of a table, and the table's pair"""

HEADROOM = 1.2
"""observed ranges grow by this. Text never seen goes further than text seen: with ranges of 4k tokens and no
headroom the worst thousandth of other tokens' values fall to 20 dB, with it to 28, for 0.3 dB of the mean"""


@dataclass(frozen=True)
class Grids:
    """Bits by role. Weights that are not fitted are per channel and symmetric; the KV cache per tensor, symmetric and
    unsigned (tried: a signed past that is joined with new entries and sliced by heads fails the compiler with 1002);
    embedding tables, norm gains and activations per tensor and asymmetric; the second operand of a product of
    activations symmetric, and signed when it has 16 bits."""

    weights: int = 8
    activations: int = 16
    kv: int = 8
    embedding: int = 16
    operand: int = 16


@dataclass(frozen=True)
class Kind:
    """What values that are no weights may lie on, and what to call one of them."""

    what: str
    bits: int
    symmetric: bool = False
    signed: bool = False


def kind(group: list[ir.Value], grids: Grids) -> Kind:
    """The kind of grid that a group takes (see roles.groups) when it holds no weight and no bias."""
    constants = [v for v in group if v.is_initializer()]
    if constants and all(roles.is_gain(v) for v in constants):
        return Kind("a norm's gain", grids.activations, symmetric=True)
    if any(u.node.op_type == "Gather" for v in constants for u in v.uses()):
        return Kind("an embedding table", grids.embedding)
    if constants:
        return Kind("a constant", grids.activations)
    if any(past_layer(str(v.name)) for v in group if v.is_graph_input()):
        return Kind("a cache", grids.kv, symmetric=True)
    if any(is_operand(v) for v in group):
        return Kind("the second operand of a product", grids.operand, symmetric=True, signed=grids.operand == 16)
    return Kind("an activation", grids.activations)


def fixed(group: list[ir.Value]) -> Range | None:
    """The range that an op's nature gives to its output, where nothing else in the group decides."""
    if any(v.is_graph_input() or v.is_initializer() or is_operand(v) for v in group):
        return None
    makers = {node.op_type for v in group if (node := v.producer()) is not None}
    found = sorted(makers & set(roles.FIXED))
    return roles.FIXED[found[0]] if found else None


def assign(graph: ir.Graph, ranges: Mapping[str, Range], grids: Grids,
           given: Mapping[str, Encoding] | None = None, clipped: Mapping[str, Range] | None = None,
           bits: Mapping[str, int] | None = None) -> Table:
    """Builds the table; every real value gets an entry, except what is computed from constants alone.

    Args:
        ranges: smallest and largest value seen, for graph inputs and every non-move's output.
        given: grids that are there already: of weights that a search has found (the others' hold their largest value),
            and of any other values, each of which its whole group takes.
        clipped: ranges of caches (by their outputs) and embedding tables that replace what was seen, headroom and all.
        bits: of weights by name, where it is not that of grids.

    Raises:
        EdgeForgeError: a value was never observed.
    """
    table = Table(given)
    for group in roles.groups(graph):
        if any(roles.weight_axis(v) is not None for v in group):
            _assign_weights(table, group, bits or {}, grids.weights)
        else:
            _assign_group(table, group, ranges, grids, clipped or {})
    return table


def _assign_weights(table: Table, group: list[ir.Value], bits: Mapping[str, int], usual: int) -> None:
    for value in group:
        name, axis, array = str(value.name), roles.weight_axis(value), edit.constant(value)
        if axis is not None and array is not None and name not in table:
            table.set(name, per_channel(reals(array), axis, bits.get(name, usual)))


def _assign_group(table: Table, group: list[ir.Value], ranges: Mapping[str, Range], grids: Grids,
                  clipped: Mapping[str, Range]) -> None:
    constants = [v for v in group if v.is_initializer()]
    if constants and all(roles.is_bias(v) for v in constants):
        return
    encoding = next((table[str(v.name)] for v in group if str(v.name) in table), None)
    if encoding is None:
        wanted = kind(group, grids)
        encoding = encodings.per_tensor(*_ends(group, ranges, clipped), wanted.bits, wanted.symmetric, wanted.signed)
    for value in group:
        table.set(str(value.name), encoding)


def _ends(group: list[ir.Value], ranges: Mapping[str, Range], clipped: Mapping[str, Range]) -> Range:
    ends = [clipped[str(v.name)] for v in group if str(v.name) in clipped]
    if ends:
        return min(low for low, _ in ends), max(high for _, high in ends)
    if any(v.is_initializer() for v in group):
        seen = _union(group, ranges)
        return wider(seen) if any(v.name in ranges for v in group) else seen
    inputs = [str(v.name) for v in group if v.is_graph_input()]
    if any(past_layer(name) for name in inputs) or any(is_operand(v) for v in group):
        return wider(_union(group, ranges))
    if inputs:
        return _union(group, ranges)
    return fixed(group) or _clipped(group, wider(_turned(group, ranges) or _union(group, ranges)))


def _clipped(group: list[ir.Value], seen: Range) -> Range:
    """No further than a Clip lets values go. HTP may fuse it with the convolution before it, and then it is the
    grid that clips (tried: with headroom on the output of a Relu6, values go past 6)."""
    for value in group:
        node = value.producer()
        if node is not None and node.op_type == "Clip":
            low, high = (edit.scalar(v) for v in (*node.inputs[1:3], None, None)[:2])
            seen = max(seen[0], -math.inf if low is None else low), min(seen[1], math.inf if high is None else high)
    return seen


def wider(seen: Range) -> Range:
    """The range with its headroom."""
    return seen[0] * HEADROOM, seen[1] * HEADROOM


def _turned(group: list[ir.Value], ranges: Mapping[str, Range]) -> Range | None:
    """The range of x * cos or x * sin at every position: that of x both ways, times the rows' amplitude.

    What was seen covers only calibration's positions, and a slow pair of channels turns further later on.
    """
    for value in group:
        node = value.producer()
        if node is None or node.op_type != "Mul":
            continue
        for x, row in (node.inputs, reversed(node.inputs)):
            if x is not None and row is not None and row.is_graph_input() and str(row.name) in _ROPE_ROWS:
                peak = _peak(_union([origin(x)], ranges)) * max(_peak(ranges[n]) for n in _ROPE_ROWS[str(row.name)])
                return -peak, peak
    return None


def _peak(seen: Range) -> float:
    return max(-seen[0], seen[1])


def origin(value: ir.Value) -> ir.Value:
    """The value that moves have made value from."""
    while (node := value.producer()) is not None and roles.moves(node) and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


def _union(group: list[ir.Value], ranges: Mapping[str, Range]) -> Range:
    found: list[Range] = []
    for value in group:
        array = edit.constant(value)
        if array is not None:
            found.append((float(reals(array).min()), float(reals(array).max())))
        elif str(value.name) in ranges:
            found.append(ranges[str(value.name)])
    if not found:
        raise EdgeForgeError(f"{group[0].name} was never observed in calibration",
                             "the graph and its ranges belong to different builds")
    return min(low for low, _ in found), max(high for _, high in found)


def coverage(graph: ir.Graph, table: Table) -> None:
    """Every real value has an encoding and every encoding has its value; else EdgeForgeError names them."""
    needed = {str(v.name) for group in roles.groups(graph) for v in group if needs_encoding(v)}
    names = {str(v.name) for v in roles.values(graph)}
    bare, stray = sorted(needed - set(table)), sorted(set(table) - names)
    if bare or stray:
        raise EdgeForgeError(f"encodings and graph disagree: {len(bare)} values without ({bare[:3]}), "
                             f"{len(stray)} encodings without value ({stray[:3]})")


def needs_encoding(value: ir.Value) -> bool:
    """False for biases and for weights on their way through a Transpose: their initializer has the grid."""
    if value.is_initializer():
        return not roles.is_bias(value)
    node = value.producer()
    return not (node is not None and roles.moves(node) and all(
        v is None or v.is_initializer() for v in node.inputs) and node.op_type == "Transpose")
