"""Weights in 4-bit blocks, counted in what was compiled: the provider drops to floats without a word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx

from edgeforge.backends.qnn.placement import Placement
from edgeforge.encodings import Table
from edgeforge.gates import Check


def blocks_read_back(placement: Placement, model: Path, table: Table) -> Iterator[Check]:
    """Every LPBQ weight of a QDQ model against the encodings that its compiled graph holds; nothing without such.

    Args:
        placement: of the graph that was compiled from model.
    """
    graph = onnx.load(model, load_external_data=False).graph
    names = {tensor.name for tensor in graph.initializer}
    asked = {name for name, encoding in table.items() if encoding.block_scale is not None and name in names}
    if asked:
        lost = sorted(asked - placement.expanded)
        yield Check(f"compile: {placement.graph} weights in blocks, BLOCKWISE_EXPANSION", len(asked) - len(lost),
                    "weights", len(asked), note=", ".join(lost[:3]))
