"""sha256 of files, remembered: an unchanged gigabyte is not read twice."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from edgeforge_runtime.typed import read_json


def default_cache() -> Path | None:
    """The json file to remember in, under the user's cache folder; None for a user without a home (a container's)."""
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(root) if root else Path.home() / ".cache") / "edgeforge" / "file-sha256.json"
    except RuntimeError:
        return None


def file_hashes(files: Iterable[Path], cache: Path | None) -> dict[Path, str]:
    """sha256 (hex) of each file; the cache saves reading, and is never needed.

    Remembered by path, size and times: mtime, and ctime because `cp -p` keeps an mtime over other contents.
    """
    try:
        known = read_json(cache) if cache is not None else {}
    except (OSError, ValueError):
        known = {}
    if not isinstance(known, dict):
        known = {}
    hashes: dict[Path, str] = {}
    fresh: dict[str, list[Any]] = {}
    for file in files:
        key, before = str(file.resolve()), _stamp(file)
        entry = known.get(key)
        if isinstance(entry, list) and entry[:-1] == before:
            hashes[file] = entry[-1]
            continue
        with file.open("rb") as raw:
            hashes[file] = hashlib.file_digest(raw, "sha256").hexdigest()
        if _stamp(file) == before:  # else it is being written
            fresh[key] = [*before, hashes[file]]
    if fresh and cache is not None:
        kept = {key: entry for key, entry in known.items() if os.path.exists(key)}
        with contextlib.suppress(OSError):
            _write_whole(cache, json.dumps(kept | fresh, indent=0))
    return hashes


def _stamp(file: Path) -> list[int]:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _write_whole(file: Path, text: str) -> None:
    """Replace a file in one step: another build may be reading it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as scratch:
        scratch.write(text)
    os.replace(scratch.name, file)
