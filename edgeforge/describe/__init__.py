"""`edgeforge inspect`: what a file or folder holds, as plain data. One describer a kind; backends add their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgeforge_runtime.typed import read_json

from edgeforge import backends
from edgeforge.errors import EdgeForgeError

Facts = dict[str, Any]
"""names to numbers, strings, lists of rows and further facts: what JSON holds; "kind" says what was described"""


def describe(path: Path) -> Facts:
    """Describes an ONNX model, encodings, a compiled binary, a bundle or a stage's folder.

    Raises:
        EdgeForgeError: not there, damaged, or none of these.
    """
    from edgeforge.describe import encoding_file, folder, onnx_model

    try:
        owner = backends.reader(path)
        if path.is_dir() and (owner is None or folder.is_ours(path)):
            return folder.describe(path)
        if path.suffix == ".onnx":
            return onnx_model.describe(path)
        if owner is not None:
            return owner.describe([path])[0]
        if path.suffix in (".json", ".encodings"):
            return encoding_file.describe(path, _json(path))
        path.stat()
    except OSError as error:
        raise EdgeForgeError(f"{path}: {error.strerror or error}", "give a file or folder that can be read") from error
    raise EdgeForgeError(f"{path} is of no known kind", f"known: {', '.join(_known())}")


def _known() -> list[str]:
    binaries = [s for n in backends.names() for s in backends.backend(n).suffixes]
    return [".onnx", ".json and .encodings with encodings", *binaries, "a bundle's folder", "a stage's folder"]


def _json(path: Path) -> Any:
    try:
        return read_json(path)
    except ValueError as error:
        raise EdgeForgeError(f"{path} is not JSON: {error}", "it is truncated or of another kind") from error
