"""Is the bundle whole? A copy that stopped half-way is named before a library says something opaque about it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from .errors import ManifestError
from .manifest import Target

STAMP = "stage.json"
"""what the build leaves beside the manifest: every file's size"""
_LOADED = (".onnx", ".data", ".bin", ".engine")
_PACKAGES = (".mlpackage", ".aimodel")
"""folders that are one model"""


def check(target: Target, folder: Path) -> None:
    """Compares every file that the target loads with the size that the build wrote.

    Without a readable stage.json only the parts themselves are looked for.

    Raises:
        ManifestError: the file that is missing, short or long, with both sizes.
    """
    parts = {p.file: p.graph for g in target.graphs for p in g.parts}
    for name, graph in parts.items():
        if not (folder / name).is_file():
            scripts = sorted((folder / name).parent.glob("*/build_*.sh"))
            change = f"{scripts[0]} makes it on the device" if scripts else "copy the bundle again"
            raise ManifestError(f"{folder / name} is missing: graph {graph} cannot run; {change}")
    for name, size in _sizes(folder, {PurePosixPath(p) for p in parts}):
        path = folder / name
        found = path.stat().st_size if path.is_file() else None
        if found is None:
            raise ManifestError(f"{path} is missing ({size:,} bytes): copy the bundle again")
        if found != size:
            state = "truncated" if found < size else "not the file that was built"
            raise ManifestError(f"{path} is {state}: {found:,} bytes, {size:,} were built; copy the bundle again")


def _sizes(folder: Path, parts: set[PurePosixPath]) -> Iterator[tuple[str, int]]:
    """Files of the stamp that hold graphs or weights and lie where the target's parts lie, or in a part's package."""
    try:
        files = json.loads((folder / STAMP).read_text(encoding="utf-8"))["files"]
        listed = [(str(name), int(seen["bytes"])) for name, seen in files.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    homes = {part.parent for part in parts}
    packages = {p for part in parts for p in part.parents if p.suffix in _PACKAGES}
    for name, size in listed:
        path = PurePosixPath(name)
        if (path.parent in homes and path.suffix in _LOADED) or packages & set(path.parents):
            yield name, size
