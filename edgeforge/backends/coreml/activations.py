"""W8A8: what products read, rounded to int8 where the table gives it a grid."""

from __future__ import annotations

import onnx_ir as ir

from edgeforge.encodings import Encoding, Table
from edgeforge.quantize import qdq


def write(model: ir.Model, formats: Table | dict[str, Encoding]) -> None:
    """In place: QuantizeLinear and DequantizeLinear after every value of formats that a node makes."""
    made = {str(v.name) for node in model.graph for v in node.outputs}
    found = Table({name: e for name, e in formats.items() if name in made})
    if found:
        qdq.quantize(model, found, "float16")
