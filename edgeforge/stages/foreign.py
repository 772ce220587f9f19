"""The recipe's quantize.encodings: another tool's grids, read, judged, and told of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from edgeforge.build import Build
from edgeforge.encodings import Table
from edgeforge.errors import EdgeForgeError, RecipeError
from edgeforge.export import aimet_read
from edgeforge.gates import Check
from edgeforge.quantize import assign, foreign
from edgeforge.quantize.foreign import Given

_SHOWN = 3


def given(build: Build, graph: ir.Graph, grids: assign.Grids, exact: Mapping[str, assign.Range]) -> Given:
    """The grids of the recipe's file; none without one.

    Args:
        exact: see foreign.take.

    Raises:
        RecipeError: the file is damaged, or does not belong to this graph, or a grid cannot be had here.
    """
    path = build.recipe.quantize.encodings
    if path is None:
        return Given(Table())
    try:
        return foreign.take(graph, aimet_read.read(path, graph), grids, exact)
    except EdgeForgeError as error:
        raise RecipeError(f"{build.recipe.where('quantize.encodings')}: {error.message}", error.hint) from error


def checks(build: Build, graph: ir.Graph, taken: Given, table: Table) -> list[Check]:
    """How many values took foreign grids; nothing when the recipe names no file. table: of the finished stage."""
    if build.recipe.quantize.encodings is None:
        return []
    notes = []
    if more := foreign.together(graph, taken.table):
        notes.append(f"{more} more share a grid with one of them")
    if taken.fixed:
        notes.append(f"{_some(taken.fixed)} not taken: there the grid is fixed")
    if raised := foreign.raised(taken.table, table):
        notes.append(f"steps too small for the hardware's multiplier or a bias were raised in {_some(raised)}")
    return [Check("quantize: foreign encodings", len(taken.table), "values", note="; ".join(notes))]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
