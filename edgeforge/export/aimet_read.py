"""AIMET's JSON back onto a graph of ours, whoever wrote it: versions 1.0.0, 2.0.0 and 2.1.0.

A file tells grids, the graph tells what each value is: its axes (1.0.0 has none), and if its codes are signed here.
Activations are unsigned and symmetric weights signed, as `quantize/assign.py` makes them; a grid keeps its reals.
"""

from __future__ import annotations

import difflib
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from edgeforge_runtime.typed import shown

from edgeforge.encoding import check, input_axis
from edgeforge.encodings import Encoding, Table
from edgeforge.errors import EdgeForgeError
from edgeforge.export import aimet_file
from edgeforge.export.aimet import turned
from edgeforge.export.aimet_file import integers, reals, single, size, width
from edgeforge.graph import edit
from edgeforge.graph.requantize import is_operand
from edgeforge.quantize import roles

_SHOWN = 10
_BITS = 4, 8, 16
Array = npt.NDArray[Any]


def read(path: Path, graph: ir.Graph) -> Table:
    """The encodings in a file, by the names of graph's values. Biases are left out: their grid is their product's.

    Raises:
        EdgeForgeError: no such file, another version, an entry that is damaged or does not fit its value's shape, or
            names that graph does not have; each is told with the nearest that it has.
    """
    table, strangers = match(path, graph)
    if strangers:
        values = [str(v.name) for v in roles.values(graph)]
        near = {name: next(iter(difflib.get_close_matches(name, values, 1)), "") for name in strangers[:_SHOWN]}
        found = "".join(f"\n  {name}" + (f" (the graph has {one})" if one else "") for name, one in near.items())
        more = f"\n  and {len(strangers) - _SHOWN} more" if len(strangers) > _SHOWN else ""
        raise EdgeForgeError(f"{path}: the graph has no value for {len(strangers)} of its encodings:{found}{more}",
                             "take the encodings that belong to this graph, or rename them")
    return table


def match(path: Path, graph: ir.Graph) -> tuple[Table, list[str]]:
    """Like read, and the names that graph does not have come back too."""
    values = {str(v.name): v for v in roles.values(graph)}
    signed = _signed(graph)
    table, strangers = Table(), list[str]()
    for name, raw in aimet_file.entries(path).items():
        value = values.get(name)
        if value is None:
            strangers.append(name)
        elif not roles.is_bias(value):
            try:
                found = _here(_parse(raw, value), name in signed)
                check(found)
                _fits(found, edit.known_dims(value))
            except aimet_file.DAMAGED as error:
                raise aimet_file.damaged(path, {name: error}) from error
            table.set(name, found)
    return table, strangers


def _signed(graph: ir.Graph) -> set[str]:
    """Values whose symmetric grids have signed codes: weights of products, and second operands of 16 bits."""
    weights = {str(v.name) for v in graph.initializers.values() if roles.weight_axis(v) is not None}
    return weights | {str(v.name) for group in roles.groups(graph) if any(is_operand(v) for v in group) for v in group}


def _here(e: Encoding, signed: bool) -> Encoding:
    """e (unsigned) with the codes that its value has in our graphs."""
    middle = 1 << (e.bits - 1)
    if not (signed and e.symmetric):
        return e
    return Encoding(e.bits, True, e.scale, e.zero_point - middle, e.axis, e.block, e.block_scale, e.channel)


def _parse(raw: dict[str, Any], value: ir.Value) -> Encoding:
    """The entry on an unsigned grid."""
    return _flat(raw, value) if "bw" in raw else _nested(raw, value)


def _flat(raw: dict[str, Any], value: ir.Value) -> Encoding:
    """Version 1.0.0."""
    kind, bits, scale, zero = raw["enc_type"], width(raw["bw"]), reals(raw["scale"]), -integers(raw["offset"])
    if kind == "PER_TENSOR":
        return Encoding(bits, False, single(scale), single(zero))
    rank, axis = len(edit.known_dims(value)), _channel(value)
    if kind == "PER_CHANNEL":
        return Encoding(bits, False, scale, zero, axis)
    block, inputs = size(raw["block_size"]), input_axis(rank, axis)
    if kind == "PER_BLOCK":
        return Encoding(bits, False, _unflat(scale, value, block), _unflat(zero, value, block), inputs, block)
    whole = _unflat(integers(raw["per_block_int_scale"]), value, block)
    return _lpbq(width(raw["compressed_bw"]), scale, whole, inputs, block, axis)


def _axis(raw: Any, rank: int) -> int:
    """ValueError: no axis of a value of this rank."""
    if not isinstance(raw, int) or not -rank <= raw < rank:
        raise ValueError(f"axis {shown(raw)} of a value of {rank} dimensions")
    return raw % rank


def _nested(raw: dict[str, Any], value: ir.Value) -> Encoding:
    """Versions 2.0.0 and 2.1.0."""
    (bits, signed), rank = aimet_file.dtype(raw), len(edit.known_dims(value))
    axis, block = raw.get("axis"), raw.get("block_size")
    axis = axis if axis is None else _axis(axis, rank)
    steps = raw.get("y_scale")
    if isinstance(steps, dict):
        return _lpbq(bits, reals(steps["x_scale"]), integers(steps["x"]), axis, block, _axis(steps["axis"], rank))
    if "per_block_int_scale" in raw:
        scale = reals(raw["per_channel_float_scale"])
        return _lpbq(bits, scale.reshape(-1), integers(raw["per_block_int_scale"]), axis, block, _channel(value))
    scale = reals(steps)
    zero = integers(raw["y_zero_point"]) if "y_zero_point" in raw else np.zeros(scale.shape, np.int64)
    return Encoding(bits, False, scale, zero + signed * (1 << (bits - 1)), axis, block)


def _lpbq(bits: int, scale: Array, whole: Array, axis: int | None, block: int | None, channel: int) -> Encoding:
    return Encoding(bits, False, scale, np.full(whole.shape, 1 << (bits - 1)), axis, block, whole, channel)


def _channel(value: ir.Value) -> int:
    """The axis of a value's channels, which 1.0.0 leaves to the reader."""
    axis = roles.weight_axis(value)
    if axis is None and len(edit.known_dims(value)) == 1:
        return 0
    if axis is None:
        raise ValueError("it is per channel, and its value is no weight of a product: which axis?")
    return axis


def _unflat(numbers: Array, value: ir.Value, block: int) -> Array:
    """Flat blocked numbers, outputs first, in the order of the value's axes; other axes have size 1."""
    shape, axis = edit.known_dims(value), _channel(value)
    inputs = input_axis(len(shape), axis)
    sizes = [int(d) // block if a == inputs else int(d) if a == axis else 1 for a, d in enumerate(shape)]
    if numbers.size != (needed := math.prod(sizes)):
        raise ValueError(f"{numbers.size} numbers where {needed} are needed, one a block of {block} of a value "
                         f"of shape {shape}")
    return numbers.reshape(sizes[::-1]).T if turned(len(shape), axis) else numbers.reshape(sizes)


def _fits(e: Encoding, shape: list[edit.Dim]) -> None:
    """A graph can print its codes, and its arrays must have the size of the value's axes."""
    if e.bits not in _BITS:
        raise ValueError(f"codes of {e.bits} bits; a graph holds {', '.join(map(str, _BITS))}")
    blocked = e.scale if e.block_scale is None else e.block_scale
    wanted: list[edit.Dim] = [] if e.axis is None else [shape[e.axis]]
    if e.axis is not None and e.block is not None:
        wanted = list(shape)
        wanted[e.axis] = int(shape[e.axis]) // e.block if int(shape[e.axis]) % e.block == 0 else -1
    if list(blocked.shape) != wanted:
        raise ValueError(f"scales {list(blocked.shape)} do not fit a value of shape {shape}"
                         + (f" in blocks of {e.block}" if e.block else ""))
