"""Where a package or an asset is written."""

from __future__ import annotations

from pathlib import Path

from edgeforge.errors import EdgeForgeError

PACKAGE, ASSET = ".mlpackage", ".aimodel"


def require_new(path: Path, suffix: str, what: str) -> None:
    """EdgeForgeError: path is there already, or has another suffix than `what` ("a Core ML package") ends in."""
    if path.suffix != suffix:
        raise EdgeForgeError(f"{path}: {what} ends in {suffix}", f"call it {path.stem}{suffix}")
    if path.exists():
        raise EdgeForgeError(f"{path} is there already", "remove it, or write to another place")
