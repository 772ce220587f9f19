"""Numbers in a graph that no answer can come of: found before anything is measured on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgeforge.errors import CheckpointError

_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_CHUNK = 1 << 24
"""bytes of external data that are in memory at once, whatever the tensor's size"""


def check(graph: ir.Graph, path: Path) -> None:
    """Every constant of the graph that path holds: no NaN, and no infinity where it is a weight (a mask may have it).

    Raises:
        CheckpointError: the first one that has, by name.
    """
    for name, value in graph.initializers.items():
        tensor = value.const_value
        if tensor is None or not tensor.size or not tensor.dtype.is_floating_point() or tensor.dtype.bitwidth < 8:
            continue
        ends = np.array([(a.min(), a.max()) for a in _pieces(tensor)], np.float64)  # least and greatest tell
        weight = any(use.node.op_type in _PRODUCTS for use in value.uses())
        if np.isnan(ends).any() or (weight and not np.isfinite(ends).all()):
            kind = "NaN" if np.isnan(ends).any() else "infinity"
            raise CheckpointError(f"{path}: tensor {name!r} holds {kind}", "the training diverged or the file is "
                                  "damaged: take an earlier checkpoint, or export it again")


def _pieces(tensor: ir.TensorProtocol) -> Iterator[npt.NDArray[Any]]:
    if not isinstance(tensor, ir.ExternalTensor):
        yield tensor.numpy()
        return
    with Path(tensor.path).open("rb") as file:
        file.seek(tensor.offset or 0)
        for start in range(0, tensor.nbytes, _CHUNK):
            yield np.frombuffer(file.read(min(_CHUNK, tensor.nbytes - start)), tensor.dtype.numpy())
