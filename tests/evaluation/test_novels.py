"""scripts/fetch_novels.py: what it reads out of R's data files."""

from __future__ import annotations

import importlib.util
import struct
import zlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def script() -> ModuleType:
    file = Path(__file__).parents[2] / "scripts" / "fetch_novels.py"
    spec = importlib.util.spec_from_file_location("fetch_novels", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def record(lines: list[str | None], kind: int = 16) -> bytes:
    """A character vector as R 3.5 and later serialise it, in a lazy-load database."""
    raw = b"X\n" + struct.pack(">iiii", 3, 0x40201, 0x30500, 5) + b"UTF-8" + struct.pack(">ii", kind, len(lines))
    for line in lines:
        text = b"" if line is None else line.encode()
        raw += struct.pack(">ii", 0x40009, -1 if line is None else len(text)) + text
    return struct.pack(">i", len(raw)) + zlib.compress(raw)


def test_reads_every_novel(script: ModuleType) -> None:
    data = record(["EMMA", "", "Miss Woodhouse, ha\u00ef!", None]) + record(["Persuasion", "Sir Walter"])
    assert list(script.novels(data)) == [("EMMA", "EMMA\n\nMiss Woodhouse, ha\u00ef!\n"),
                                         ("PERSUASION", "Persuasion\nSir Walter\n")]


def test_leaves_out_what_is_none(script: ModuleType) -> None:
    data = record(["a table"]) + record(["EMMA"], kind=13) + record(["Emma", "x"])
    assert [title for title, _ in script.novels(data)] == ["EMMA"]
