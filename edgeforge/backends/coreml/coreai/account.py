"""What an .aimodel says of itself, read without torch and without running it."""

from __future__ import annotations

import hashlib
import importlib
import re
from pathlib import Path
from typing import Any

from edgeforge.backends.coreml import systems
from edgeforge.errors import CompilerError

PROGRAM, _HASH = "main.mlirb", "main.hash"
_TENSOR = re.compile(r"\w+ \((\w+), (\d+(?: × \d+)*)\)")
"""as Core AI 1.0.0b3 words a value: `NDArray (Float16, 1 × 1 × 32 × 128)`"""


def facts(path: Path) -> dict[str, Any]:
    """See backends.Backend.describe.

    Raises:
        CompilerError: no asset, a damaged one, or Core AI is not installed.
    """
    require_whole(path)
    if why := systems.coreai():
        raise CompilerError(f"{path.name}: {why}", systems.INSTALL_COREAI)
    asset = importlib.import_module("coreai.authoring").AIModelAsset.load(path.resolve())
    summary = asset.summary()
    if not summary.function_names:
        raise CompilerError(f"{path} holds no function that Core AI reads", "build it again")
    year = str(summary._compatibility_version).partition(".")[0]  # nothing public says it
    return {"kind": "Core AI asset", "path": str(path), "read_by": f"iOS {year}, macOS {year} or later",
            "bytes": sum(p.stat().st_size for p in path.rglob("*") if p.is_file()),
            "stored_elements": {kind.lower(): count for kind, count in summary.storage_types},
            "ops": dict(sorted(summary.operation_distribution)),
            "functions": [{"name": name, "inputs": list(map(_value, summary.function_inputs(name))),
                           "outputs": list(map(_value, summary.function_outputs(name)))}
                          for name in sorted(summary.function_names)]}


def require_whole(path: Path) -> None:
    """CompilerError when its program is not the one that its own sha256 was written for: Core AI ends the process that
    opens such an asset."""
    try:
        with (path / PROGRAM).open("rb") as file:
            made = hashlib.file_digest(file, "sha256").digest()
        wanted = (path / _HASH).read_bytes()
    except OSError as error:
        raise CompilerError(f"{path} is not a whole Core AI asset: {error.filename}: {error.strerror}") from error
    if made != wanted:
        raise CompilerError(f"{path} is damaged: {PROGRAM} is not what {_HASH} was written for",
                            "copy it again, or build it again")


def _value(named: tuple[str, str]) -> dict[str, Any]:
    name, text = named
    found = _TENSOR.fullmatch(text)
    return {"name": name, "type": found[1].lower() if found else text,
            "shape": [int(d) for d in found[2].split(" × ")] if found else []}
