"""An onnx_ir model on disk: model.onnx beside model.data, written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
from google.protobuf.message import DecodeError

from edgeforge.errors import EdgeForgeError

MODEL = "model.onnx"
DATA = "model.data"
_INLINE_BELOW = 1024
"""bytes; smaller constants stay inside model.onnx, where a reader sees them"""


def save(model: ir.Model, folder: Path) -> Path:
    """Writes model.onnx and model.data into an existing folder; returns the model's path."""
    path = folder / MODEL
    _check_names(model.graph)
    ir.save(model, path, external_data=DATA, size_threshold_bytes=_INLINE_BELOW)
    return path


def load(folder: Path) -> ir.Model:
    """Reads a model; weights stay memory-mapped until they are used.

    Raises:
        EdgeForgeError: not there, or no model.
    """
    path = folder / MODEL
    try:
        model = ir.load(path)
        if not model.graph.outputs:  # protobuf takes an empty file for an empty message
            raise ValueError("a graph without outputs")
        return model
    except FileNotFoundError:
        raise EdgeForgeError(f"{path} does not exist", "the stage that writes it has not finished") from None
    except (DecodeError, ir.serde.SerdeError, ValueError, TypeError, KeyError) as error:
        raise EdgeForgeError(f"{path} is not an ONNX model, or is damaged: {type(error).__name__} {error}",
                             "remove its folder: the stage that writes it runs again") from error


def _check_names(graph: ir.Graph) -> None:
    seen: set[str] = set()
    for value in [*graph.inputs, *graph.initializers.values(), *(o for n in graph for o in n.outputs)]:
        if value.name is None or value.name in seen:
            raise EdgeForgeError(f"value name {value.name!r} is used twice or missing",
                                 "a graph pass broke the naming law; please report it")
        seen.add(value.name)
