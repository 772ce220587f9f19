"""Which bytes of weight.bin each function of a package reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEADER = 64
"""bytes before the first blob"""


@dataclass(frozen=True)
class Sharing:
    """Bytes of weight.bin, and of the blobs that each function reads."""

    total: int
    functions: dict[str, int]

    @property
    def share(self) -> float:
        """1 when one function reads everything."""
        return self.total / max(1, *self.functions.values())


def measure(spec: Any, weights: Path) -> Sharing:
    """spec: the model (Model_pb2.Model) beside that weight.bin."""
    size = weights.stat().st_size if weights.exists() else 0
    read = {name: _offsets(function) for name, function in spec.mlProgram.functions.items()}
    starts = sorted(set().union(*read.values()))
    ends = dict(zip(starts, [*starts[1:], size], strict=True)) if starts else {}
    return Sharing(size, {name: HEADER + sum(ends[o] - o for o in found) for name, found in read.items()})


def _offsets(function: Any) -> set[int]:
    block = function.block_specializations[function.opset]
    found: set[int] = set()
    for op in block.operations:
        values = [*op.attributes.values(), *(b.value for a in op.inputs.values() for b in a.arguments)]
        found |= {v.blobFileValue.offset for v in values if v.WhichOneof("value") == "blobFileValue"}
    return found
