"""A .mlpackage: prefill and decode as two functions over one set of weights.

The folder is written here, because coremltools' own writer gives every package new random identifiers: the same
functions make the same bytes. Layout: Apple's Core ML Format specification, and packages that coremltools 9.0 writes.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeforge.backends.coreml import mil, sharing
from edgeforge.backends.coreml.sharing import Sharing
from edgeforge.errors import EdgeForgeError

SUFFIX = ".mlpackage"
DATA = Path("Data/com.apple.CoreML")
MODEL, WEIGHTS = DATA / "model.mlmodel", DATA / "weights" / "weight.bin"
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://github.com/apple/coremltools")


def write(functions: Mapping[str, Any], default: str, path: Path, facts: Mapping[str, str],
          specification: int = mil.OLDEST) -> Sharing:
    """Writes path as a whole or not at all.

    Args:
        functions: by name, as emit made them. facts: what a user of the package may read in its metadata.

    Raises:
        EdgeForgeError: path is there already, or has another suffix.
    """
    if path.suffix != SUFFIX:
        raise EdgeForgeError(f"{path}: a Core ML package ends in {SUFFIX}", f"call it {path.stem}{SUFFIX}")
    if path.exists():
        raise EdgeForgeError(f"{path} is there already", "remove it, or write to another place")
    try:
        return _write(functions, default, path, facts, specification)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def _write(functions: Mapping[str, Any], default: str, path: Path, facts: Mapping[str, str],
           specification: int) -> Sharing:
    weights = path / WEIGHTS
    weights.parent.mkdir(parents=True)
    spec = mil.serialize(functions, default, weights.parent, specification)
    spec.description.metadata.userDefined.update(facts)
    (path / MODEL).write_bytes(spec.SerializeToString(deterministic=True))
    (path / "Manifest.json").write_text(json.dumps(_manifest(), indent=4) + "\n", encoding="utf-8")
    return sharing.measure(spec, weights)


def _manifest() -> dict[str, Any]:
    model, weights = (str(uuid.uuid5(_NAMESPACE, name)).upper() for name in ("model", "weights"))
    author = "com.apple.CoreML"
    return {"fileFormatVersion": "1.0.0", "rootModelIdentifier": model, "itemInfoEntries": {
        model: {"author": author, "description": "CoreML Model Specification", "name": "model.mlmodel",
                "path": f"{author}/model.mlmodel"},
        weights: {"author": author, "description": "CoreML Model Weights", "name": "weights",
                  "path": f"{author}/weights"}}}
