"""Where a checkpoint comes from: a folder, a GGUF file or the hub."""

from __future__ import annotations

from pathlib import Path

from edgeforge.checkpoint import hub
from edgeforge.checkpoint.folder import open_folder
from edgeforge.checkpoint.gguf import open_gguf
from edgeforge.checkpoint.opened import Checkpoint
from edgeforge.errors import CheckpointError


def locate(model: Path, path: Path) -> Path:
    """Where a recipe's `model` is: path, or what the recipe says when that is a hub id.

    `org/name[@revision]` is a hub id when neither it nor `org` lies beside the recipe: what exists wins.

    Args:
        path: model as seen from the recipe's folder, absolute.
    """
    named_on_hub = hub.parse(str(model)) is not None and not path.exists() and not path.parent.exists()
    return model if named_on_hub else path


def open_checkpoint(model: str | Path, allow_pickle: bool = False) -> Checkpoint:
    """Reads a checkpoint's config and weight headers; fetches it first when it is a hub id.

    Args:
        model: a folder, a .gguf file, or a hub id that `locate` left as it is.
        allow_pickle: read weights that torch pickled (.bin, .pt) when there are no safetensors. They are
            loaded as tensors only: code in them is refused, not run. From the hub none are fetched; the error says how
            to get them.

    Raises:
        CheckpointError: it, its config or a weight file is missing, truncated or contradictory.
        UnsupportedError: the weights are there in a form that EdgeForge does not read.
    """
    path = Path(model).expanduser()
    try:
        if path.is_dir():
            return open_folder(path.absolute(), allow_pickle)
        if path.exists():
            return open_gguf(path.absolute())
        if found := hub.parse(str(model)):
            return hub.open_repository(found)
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or path}: {error.strerror or error}", "can this user read the checkpoint's files?"
        ) from error
    raise CheckpointError(
        f"there is no {path}",
        "check the path (in a recipe: relative to the recipe's folder), or give a hub id: org/name, org/name@revision",
    )
