"""The calibration text as inputs of a graph, for who walks it in torch."""

from __future__ import annotations

from pathlib import Path

from edgeforge import artifact
from edgeforge.calibrate import whole
from edgeforge.quantize.walk import Sample
from edgeforge.stages import reading


def samples(source: Path, text: Path) -> list[Sample]:
    """The windows of text as inputs of the decoder in source, each all at once."""
    decoder = artifact.load_decoder(source)
    tables = artifact.load_rope(source)
    return [whole.feeds(decoder, ids, tables) for ids in reading.windows(text)]
