"""What a build starts from: a checkpoint, or a plain ONNX graph with samples of its inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgeforge import checkpoint, onnx_source
from edgeforge.checkpoint import Checkpoint
from edgeforge.onnx_source import OnnxSource
from edgeforge.recipe import OnnxModel

Source = Checkpoint | OnnxSource


def open_source(model: Path | OnnxModel) -> Source:
    """Opens what the recipe's `model` names; raises what checkpoint.open_checkpoint and onnx_source.open_onnx do."""
    return onnx_source.open_onnx(model) if isinstance(model, OnnxModel) else checkpoint.open_checkpoint(model)


def place(source: Source) -> Any:
    """Where it lies, as JSON."""
    if isinstance(source, Checkpoint):
        return str(source.folder)
    return {"onnx": str(source.path), "calibration": str(source.calibration)}


def there(place: Any) -> Source | None:
    """What lies at a place now; None when nothing does."""
    model = OnnxModel(**place) if isinstance(place, dict) else Path(place)
    paths = (model.onnx, model.calibration) if isinstance(model, OnnxModel) else (model,)
    return open_source(model) if all(p.exists() for p in paths) else None
