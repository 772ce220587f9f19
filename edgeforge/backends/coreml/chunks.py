"""A model over what one file may hold, as several: cut between layers, balanced by the bytes that each will store."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from edgeforge.backends.coreml.weights import Format
from edgeforge.encoding import Encoding
from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit, split
from edgeforge.quantize.weights.palette import Palette

_FLOAT16 = 16
_HINT = "raise apple.package_bytes, or take fewer bits a weight"


def cut(model: ir.Model, formats: Mapping[str, Format], most: int) -> list[ir.Model]:
    """The model itself, or its chunks in order. What one hands to the next is called `handover_1`, ...

    Args:
        model: symbolic, as quantize leaves it; changed where it is cut. formats: of its weights. most: bytes a file.

    Raises:
        UnsupportedError: one layer, the embedding or the head is larger than that.
    """
    sizes = {name: _size(array, formats.get(name)) for name, v in model.graph.initializers.items()
             if (array := edit.constant(v)) is not None and array.dtype.kind == "f"}
    if sum(sizes.values()) <= most:
        return [model]
    try:
        plan = split.plan(model.graph, sizes, most)
    except UnsupportedError as error:
        raise UnsupportedError(error.message, _HINT) from error
    if max(plan.bytes) > most:
        what, size = ("embedding", plan.bytes[0]) if plan.bytes[0] > most else ("head", plan.bytes[-1])
        raise UnsupportedError(f"the {what} holds {size:,} bytes of weights, and a package {most:,}", _HINT)
    at = _joined(plan.bytes, most)
    cuts = [plan.cuts[i - 1] for i in at]
    values = ir.convenience.create_value_mapping(model.graph)
    for number, name in enumerate(cuts, 1):
        values[name].name = f"handover_{number}"
    names = [str(v.name) for v in model.graph.outputs]
    return split.extract(model, [f"handover_{n}" for n in range(1, len(cuts) + 1)], names)


def names(stem: str, suffix: str, count: int) -> list[str]:
    """What the files are called: one is `stem`; of several, each says which it is."""
    if count == 1:
        return [f"{stem}{suffix}"]
    return [f"{stem}_{k:0{len(str(count))}d}_of_{count}{suffix}" for k in range(1, count + 1)]


def _joined(sizes: Sequence[int], most: int) -> list[int]:
    """The parts before which a file begins, so that as few as follow each other are one: the plan has embedding and
    head apart, which they need not be."""
    starts, held = [], sizes[0]
    for index, size in enumerate(sizes[1:], 1):
        if held + size > most:
            starts.append(index)
            held = 0
        held += size
    return starts


def _size(array: np.ndarray, form: Format | None) -> int:
    """Bytes of the codes and of their steps, or of the tables and the places in them."""
    if isinstance(form, Palette):
        bits = form.bits * array.size + _FLOAT16 * form.tables.size
    elif isinstance(form, Encoding) and form.bits < _FLOAT16:
        bits = form.bits * array.size + _FLOAT16 * form.steps().size
    else:
        bits = _FLOAT16 * array.size
    return math.ceil(bits / 8)
