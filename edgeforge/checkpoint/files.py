"""Reading files that a stranger wrote: regular, inside their folder, not endless."""

from __future__ import annotations

import json
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgeforge.checkpoint.words import names
from edgeforge.errors import CheckpointError

_AGAIN = "download it again"
_MAX_JSON_BYTES = 32 << 20
"""config.json has a few kB; the index of a model with 100,000 tensors about 10 MB"""


def tree(folder: Path) -> Path:
    """The folder that everything in a checkpoint must resolve into.

    The hub's own cache keeps a snapshot as links into the repository's folder, two levels up
    (models--org--name/snapshots/COMMIT/config.json -> ../../blobs/...); everything else is the folder itself.
    """
    real = folder.resolve()
    repository = real.parent.parent
    return repository if real.parent.name == "snapshots" and repository.name.startswith("models--") else real


def check_regular(file: Path, root: Path) -> None:
    """Refuses links out of root, and whatever is no regular file (reading a FIFO would never end).

    Raises:
        CheckpointError: it is one of these, or not there.
    """
    try:
        mode = file.stat().st_mode
    except FileNotFoundError as error:
        lost = f"{file} is a link to {file.readlink()}, which is not there" if file.is_symlink() else f"no {file}"
        raise CheckpointError(lost, _AGAIN) from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
        raise CheckpointError(f"{file} is {kind}, not a file", "download the checkpoint again into an empty folder")
    real = file.resolve()
    if not real.is_relative_to(root):
        raise CheckpointError(
            f"{file} is a link out of the checkpoint's folder, to {real}",
            "copy the file into the folder, or give the folder where all files really lie",
        )


def read_json(file: Path, root: Path, hint: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        CheckpointError: not there, no UTF-8, no JSON, nested without end, a key twice, too large, no object.
    """
    if not file.exists() and not file.is_symlink():
        raise CheckpointError(f"there is no {file}", hint)
    check_regular(file, root)
    if (size := file.stat().st_size) > _MAX_JSON_BYTES:
        raise CheckpointError(f"{file} has {size} bytes; at most {_MAX_JSON_BYTES} are read", "is it really JSON?")
    try:
        value = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=_unique)
    except RecursionError as error:
        raise CheckpointError(f"{file} nests too deeply to be a config", _AGAIN) from error
    except ValueError as error:
        raise CheckpointError(f"{file} is not JSON: {error}", _AGAIN) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} holds a {type(value).__name__}, no object", _AGAIN)
    return value


def indexed(index: Path, root: Path) -> tuple[tuple[Path, ...], dict[str, str]]:
    """The files that an index names, all there, and its map from tensor to file.

    Raises:
        CheckpointError: no map in it, a name that is a path, a file missing.
    """
    weight_map = read_json(index, root, "download it again").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(f, str) for f in weight_map.values()):
        raise CheckpointError(f"{index} has no `weight_map` from tensors to files", "download the checkpoint again")
    files = tuple(_inside(index, name) for name in sorted(set(weight_map.values())))
    if missing := [f.name for f in files if not f.exists()]:
        raise CheckpointError(
            f"{index.parent} lacks {len(missing)} of {len(files)} weight files: {names(missing)}",
            "download the missing files: the download stopped early",
        )
    return files, weight_map


def _inside(index: Path, name: str) -> Path:
    if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise CheckpointError(
            f"{index} names {name!r}, which is not a plain file name",
            "an index names files in its own folder: take it from the original model",
        )
    return index.parent / name


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ: readers disagree about which of two counts."""
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(k for i, k in enumerate(keys) if k in keys[:i])!r} is there twice")
    return made
