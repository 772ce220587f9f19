"""The recipe's quantize.encodings: another tool's grids, read, judged, and told of."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from edgeforge.build import Build
from edgeforge.encodings import Table
from edgeforge.errors import EdgeForgeError, RecipeError
from edgeforge.export import aimet_read
from edgeforge.gates import Check
from edgeforge.quantize import assign, foreign

_SHOWN = 3


def given(build: Build, graph: ir.Graph, grids: assign.Grids, exact: Mapping[str, assign.Range]) -> Table:
    """The grids of the recipe's file; none without one.

    Args:
        exact: see foreign.require.

    Raises:
        RecipeError: the file is damaged, or does not belong to this graph, or a grid cannot be had here.
    """
    path = build.recipe.quantize.encodings
    if path is None:
        return Table()
    try:
        found = aimet_read.read(path, graph)
        foreign.require(graph, found, grids, exact)
    except EdgeForgeError as error:
        raise RecipeError(f"{build.recipe.where('quantize.encodings')}: {error.message}", error.hint) from error
    return found


def checks(build: Build, graph: ir.Graph, taken: Table, table: Table) -> list[Check]:
    """How many values took foreign grids; nothing when the recipe names no file.

    Args:
        taken: what the file gives. table: of the finished stage.
    """
    if build.recipe.quantize.encodings is None:
        return []
    notes = []
    if more := foreign.together(graph, taken):
        notes.append(f"{more} more share a grid with one of them")
    if raised := foreign.raised(taken, table):
        names = ", ".join(raised[:_SHOWN]) + (f" and {len(raised) - _SHOWN} more" if len(raised) > _SHOWN else "")
        notes.append(f"steps too small for the hardware's multiplier were raised in {names}")
    return [Check("quantize: foreign encodings", len(taken), "values", note="; ".join(notes))]
