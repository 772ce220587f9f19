"""What a build starts from: a checkpoint, or a plain ONNX graph with samples of its inputs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from edgeforge import checkpoint
from edgeforge.checkpoint import Checkpoint
from edgeforge.recipe import OnnxModel

if TYPE_CHECKING:
    from edgeforge.onnx_source import OnnxSource

Source: TypeAlias = "Checkpoint | OnnxSource"


def open_source(model: Path | OnnxModel, allow_pickle: bool = False) -> Source:
    """Opens what the recipe's `model` names; raises what open_checkpoint and open_onnx do."""
    if isinstance(model, OnnxModel):
        # onnx takes a second to load; a checkpoint's no-op build needs none
        from edgeforge.onnx_source import open_onnx

        return open_onnx(model)
    return checkpoint.open_checkpoint(model, allow_pickle)


def place(source: Source) -> Any:
    """Where it lies, as JSON."""
    if isinstance(source, Checkpoint):
        return source.source
    return {"onnx": str(source.path), "calibration": str(source.calibration)}


def revision(source: Source) -> str | None:
    """The hub's commit; None for what lies on disk."""
    return source.revision if isinstance(source, Checkpoint) else None


def there(place: Any) -> Source | None:
    """What lies at a place on this disk now; None when nothing does. Pickles are hashed, not read."""
    model = OnnxModel(**place) if isinstance(place, dict) else Path(place)
    paths = (model.onnx, model.calibration) if isinstance(model, OnnxModel) else (model,)
    # A hub's id is no absolute path: its revision says what it was.
    return open_source(model, allow_pickle=True) if all(p.is_absolute() and os.path.exists(p) for p in paths) else None
