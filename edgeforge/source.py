"""What a build starts from: a checkpoint, or a plain ONNX graph with samples of its inputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from edgeforge import checkpoint
from edgeforge.checkpoint import Checkpoint
from edgeforge.recipe import OnnxModel

if TYPE_CHECKING:
    from edgeforge.onnx_source import OnnxSource

Source: TypeAlias = "Checkpoint | OnnxSource"


def open_source(model: Path | OnnxModel) -> Source:
    """Opens what the recipe's `model` names; raises what open_checkpoint and open_onnx do."""
    if isinstance(model, OnnxModel):
        from edgeforge.onnx_source import (
            open_onnx,  # onnx takes a second to load; a checkpoint's no-op build needs none
        )

        return open_onnx(model)
    return checkpoint.open_checkpoint(model)


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
