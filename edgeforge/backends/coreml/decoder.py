"""A quantized decoder's graph as a package with the functions prefill and decode."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir
from edgeforge_runtime.manifest import LOGITS

from edgeforge.backends.coreml import head, package, state
from edgeforge.backends.coreml.emit import emit
from edgeforge.backends.coreml.lower.products import MOST_OUTPUTS
from edgeforge.backends.coreml.sharing import Sharing
from edgeforge.backends.coreml.target import DECODE
from edgeforge.backends.coreml.weights import Format
from edgeforge.encodings import Table
from edgeforge.graph import bind, edit, sha
from edgeforge.quantize.weights import palette
from edgeforge.quantize.weights.palette import Palette


def write(model: ir.Model, table: Table, palettes: Mapping[str, Palette], widths: Mapping[str, int], past: int,
          path: Path) -> Sharing:
    """Writes the package; model is changed on the way.

    Args:
        model: the whole symbolic graph under the profile `ane`, in float. table, palettes: formats of its weights by
            name; float16 without one. widths: new tokens of each function by name. past: cached tokens that every
            function reads; one number, so that one buffer serves them all.

    Raises:
        UnsupportedError: an op or a format that the Neural Engine does not take.
        EdgeForgeError: see package.write.
    """
    functions = build(model, table, palettes, widths, past)
    facts = {"edgeforge.past": str(past), **{f"edgeforge.{name}": str(ar) for name, ar in widths.items()}}
    return package.write(functions, DECODE if DECODE in functions else next(iter(functions)), path, facts)


def build(model: ir.Model, table: Table, palettes: Mapping[str, Palette], widths: Mapping[str, int], past: int,
          ) -> dict[str, Any]:
    """The functions by name; see write."""
    formats = prepare(model, table, palettes)
    return {name: emit(graph, formats) for name, graph in bound(model, widths, past).items()}


def prepare(model: ir.Model, table: Table, palettes: Mapping[str, Palette], slots: int | None = None,
            ) -> dict[str, Format]:
    """Rewrites model in place, one attention a head and the head in pieces; the formats of its weights then.

    Args:
        slots: tokens of a cache that the model keeps (state.keep); None: it is handed in and out.
    """
    table = sha.split_heads(model, table)
    if slots is not None:
        state.keep(model, slots)
    if any(str(v.name) == LOGITS for v in model.graph.outputs):
        table = head.divide(model, table, MOST_OUTPUTS, every_row=slots is not None)
    sizes = {name: len(array) for name, v in model.graph.initializers.items()
             if (array := edit.constant(v)) is not None and array.ndim}
    return {**table, **palette.spread(palettes, sizes)}


def bound(model: ir.Model, widths: Mapping[str, int], past: int) -> dict[str, ir.Graph]:
    """A static graph for each function; see write."""
    return {name: bind.bind(model.clone(), ar, past + ar).graph for name, ar in widths.items()}
