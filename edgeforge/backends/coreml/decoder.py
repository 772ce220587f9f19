"""A quantized decoder's graph as packages with the functions prefill and decode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
from edgeforge_runtime.manifest import LOGITS, Tensor

from edgeforge.backends.coreml import activations, chunks, head, mil, package, state
from edgeforge.backends.coreml.chain import Boundary, Package
from edgeforge.backends.coreml.emit import emit, static
from edgeforge.backends.coreml.target import DECODE, MOST_OUTPUTS
from edgeforge.backends.coreml.weights import Format
from edgeforge.encodings import Table
from edgeforge.errors import CompilerError
from edgeforge.graph import bind, edit, sha
from edgeforge.quantize.weights import palette
from edgeforge.quantize.weights.palette import Palette

_SLACK = 1 << 16
"""of small constants, which the cut does not count"""


@dataclass(frozen=True)
class Wanted:
    """What the recipe's section `apple` asks of packages. most: bytes of weights in each. state: the model keeps the
    cache. specification: of the format, see targets.AppleSystem."""

    most: int = 1 << 40
    state: bool = False
    specification: int = mil.OLDEST


def write(model: ir.Model, table: Table, palettes: Mapping[str, Palette], widths: Mapping[str, int], past: int,
          path: Path, wanted: Wanted = Wanted()) -> list[Package]:
    """Writes the packages; model is changed on the way.

    Args:
        model: the whole symbolic graph under the profile `ane`, in float. table, palettes: formats of its weights by
            name; float16 without one. widths: new tokens of each function by name. past: cached tokens that every
            function reads; one number, so that one buffer serves them all. path: of the one package; of several, each
            says in its name which it is.

    Raises:
        UnsupportedError: an op or a format that the Neural Engine does not take, or a layer that no package holds.
        EdgeForgeError: see package.write.
    """
    pieces = chunks.cut(model, {**table, **palettes}, wanted.most)
    names = chunks.names(path.stem, path.suffix, len(pieces))
    return [_package(piece, table, palettes, widths, past, path.with_name(name), wanted)
            for piece, name in zip(pieces, names, strict=True)]


def _package(model: ir.Model, table: Table, palettes: Mapping[str, Palette], widths: Mapping[str, int], past: int,
             path: Path, wanted: Wanted) -> Package:
    facts = {"edgeforge.past": str(past), **{f"edgeforge.{name}": str(ar) for name, ar in widths.items()}}
    left = edit.names(model.graph)
    formats = prepare(model, Table({n: e for n, e in table.items() if n in left}),
                      {n: p for n, p in palettes.items() if n in left}, past if wanted.state else None)
    graphs = bound(model, widths, past, wanted.state)
    functions = {name: emit(graph, formats, wanted.specification) for name, graph in graphs.items()}
    default = DECODE if DECODE in functions else next(iter(functions))
    sharing = package.write(functions, default, path, facts, wanted.specification)
    if sharing.total > wanted.most + _SLACK:
        raise CompilerError(f"{path.name}: {sharing.total:,} bytes of weights, and {wanted.most:,} were allowed",
                            "lower apple.package_bytes, and please report it")
    return Package(path.name, sharing, {name: _boundary(graph) for name, graph in graphs.items()})


def _boundary(graph: ir.Graph) -> Boundary:
    given = tuple(_tensor(v) for v in graph.inputs if not state.is_state(v))
    made = [_tensor(v) for v in graph.outputs]
    pieces = [t for t in made if t.name.startswith(f"{LOGITS}_")]
    if pieces:
        sizes = tuple(t.shape[-1] for t in pieces)
        whole = Tensor(LOGITS, pieces[0].dtype, (*pieces[0].shape[:-1], sum(sizes)), pieces=sizes)
        made = [whole, *(t for t in made if t not in pieces)]
    return given, tuple(made)


def _tensor(value: ir.Value) -> Tensor:
    whole = value.dtype in (ir.DataType.INT32, ir.DataType.INT64)
    return Tensor(str(value.name), "int32" if whole else "float16", static(value))


def build(model: ir.Model, table: Table, palettes: Mapping[str, Palette], widths: Mapping[str, int], past: int,
          ) -> dict[str, Any]:
    """The functions of one package by name; see write."""
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
    activations.write(model, table)
    sizes = {name: len(array) for name, v in model.graph.initializers.items()
             if (array := edit.constant(v)) is not None and array.ndim}
    return {**table, **palette.spread(palettes, sizes)}


def bound(model: ir.Model, widths: Mapping[str, int], past: int, kept: bool = False) -> dict[str, ir.Graph]:
    """A static graph for each function; see write. kept: the past includes the new tokens."""
    return {name: bind.bind(model.clone(), ar, past if kept else past + ar).graph for name, ar in widths.items()}
