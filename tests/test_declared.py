"""What the sources import is declared where they are installed from: nothing is left to another package's needs."""

from __future__ import annotations

import ast
import importlib.metadata
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
OURS = {"edgeforge", "edgeforge_runtime"}
PEERS = {"aimet_onnx"}
"""what a bench races against, in an environment of its own"""


def imported(folder: Path) -> Iterator[tuple[str, Path]]:
    """Top-level names that any file imports anywhere, `google.protobuf` by two; not our own files' and folders'."""
    files = sorted(folder.rglob("*.py"))
    beside = [p for home in (folder, ROOT / "tests", ROOT / "runtimes" / "tests") for p in home.rglob("*.py")]
    local = {p.parent.name if p.stem == "__init__" else p.stem for p in beside}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else (
                [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else [])
            for name in names:
                top = name.split(".")[0]
                if top not in sys.stdlib_module_names | OURS | PEERS | local:
                    yield ".".join(name.split(".")[:2]) if top == "google" else top, file


def declared(folder: Path, *extras: str) -> set[str]:
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = project["dependencies"] + [r for e in extras for r in project["optional-dependencies"][e]]
    return {canonicalize_name(Requirement(r).name) for r in rows}


@pytest.mark.parametrize(("folder", "extras"), [
    ("edgeforge", ("qnn", "coreml", "coreai")), ("runtimes/edgeforge_runtime", ("qnn",)),
    ("scripts", ("qnn", "tensorrt", "coreml", "dev")),
])
def test_every_import_is_declared(folder: str, extras: tuple[str, ...]) -> None:
    home = ROOT / "runtimes" if folder.startswith("runtimes") else ROOT
    known, makers = declared(home, *extras), importlib.metadata.packages_distributions()
    makers["google.protobuf"] = ["protobuf"]
    missing = {name: str(file.relative_to(ROOT)) for name, file in imported(ROOT / folder)
               if not {canonicalize_name(m) for m in makers.get(name, [name])} & known}
    assert not missing
