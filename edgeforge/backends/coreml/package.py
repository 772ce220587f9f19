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

from edgeforge_runtime.typed import read_json

from edgeforge.backends.coreml import mil, place, sharing
from edgeforge.backends.coreml.sharing import Sharing
from edgeforge.errors import EdgeForgeError

DATA = Path("Data/com.apple.CoreML")
MODEL, WEIGHTS = DATA / "model.mlmodel", DATA / "weights" / "weight.bin"
MANIFEST = "Manifest.json"
_AGAIN = "copy the package again, or build it again"
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://github.com/apple/coremltools")


def write(functions: Mapping[str, Any], default: str, path: Path, facts: Mapping[str, str],
          specification: int = mil.OLDEST) -> Sharing:
    """Writes path as a whole or not at all.

    Args:
        functions: by name, as emit made them. facts: what a user of the package may read in its metadata.

    Raises:
        EdgeForgeError: see place.require_new.
    """
    place.require_new(path, place.PACKAGE, "a Core ML package")
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
    (path / MANIFEST).write_text(json.dumps(_manifest(), indent=4) + "\n", encoding="utf-8")
    return sharing.measure(spec, weights)


def model(package: Path) -> Path:
    """The model's file, found as Apple's frameworks find it: the manifest names it, and every other item of the
    package has to be there, too.

    Raises:
        EdgeForgeError: no manifest, a damaged one, or something that it names is missing.
    """
    try:
        raw = read_json(package / MANIFEST)
        items = {key: package / "Data" / entry["path"] for key, entry in raw["itemInfoEntries"].items()}
        found: Path = items[raw["rootModelIdentifier"]]
        missing = [str(item) for item in items.values() if not item.exists()]
    except OSError as error:
        raise EdgeForgeError(f"{package} is not a Core ML package: {MANIFEST}: {error.strerror or error}", _AGAIN
                             ) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise EdgeForgeError(f"{package} is not a Core ML package: its {MANIFEST} is damaged: {type(error).__name__} "
                             f"{error}", _AGAIN) from error
    if missing:
        raise EdgeForgeError(f"{package} is not a whole Core ML package: {missing[0]} is missing", _AGAIN)
    return found


def _manifest() -> dict[str, Any]:
    model, weights = (str(uuid.uuid5(_NAMESPACE, name)).upper() for name in ("model", "weights"))
    author = "com.apple.CoreML"
    return {"fileFormatVersion": "1.0.0", "rootModelIdentifier": model, "itemInfoEntries": {
        model: {"author": author, "description": "CoreML Model Specification", "name": "model.mlmodel",
                "path": f"{author}/model.mlmodel"},
        weights: {"author": author, "description": "CoreML Model Weights", "name": "weights",
                  "path": f"{author}/weights"}}}
