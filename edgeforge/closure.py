"""What code a stage runs: the modules of ours that its module imports, and theirs, found without importing them."""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import edgeforge_runtime

_PACKAGES = {"edgeforge": Path(__file__).parent, "edgeforge_runtime": Path(edgeforge_runtime.__file__).parent}


def digest(roots: Iterable[str], without: frozenset[str] = frozenset()) -> str:
    """sha256 over the sources of the import closure of roots.

    Args:
        roots: dotted names of modules of ours.
        without: modules whose effect on a result is known from elsewhere; they and what only they import don't count.
    """
    found = hashlib.sha256()
    for name, path in sorted(modules(roots, without).items()):
        found.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def modules(roots: Iterable[str], without: frozenset[str] = frozenset()) -> dict[str, Path]:
    """Every module of ours in the import closure of roots, by dotted name."""
    found: dict[str, Path] = {}
    todo = list(roots)
    while todo:
        name = todo.pop()
        path = _file(name)
        if path is not None and name not in found and name not in without:
            found[name] = path
            todo += _mentions(name, path)
    return found


@functools.cache
def _file(name: str) -> Path | None:
    package, *rest = name.split(".")
    if package not in _PACKAGES or not all(map(str.isidentifier, rest)):
        return None
    path = _PACKAGES[package].joinpath(*rest)
    return next((f for f in (path / "__init__.py", path.with_suffix(".py")) if f.is_file()), None)


@functools.cache
def _mentions(name: str, path: Path) -> tuple[str, ...]:
    """What a module imports, at its top or later, and its packages; a string with a module's name counts, too,
    for child processes are started by it. Imports for the type checker alone don't.
    """
    parents = (name.rsplit(".", i)[0] for i in range(1, name.count(".") + 1))
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return (*parents, *_imports(ast.parse(path.read_bytes()), package))


def _imports(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = package.rsplit(".", node.level - 1)[0] if node.level else ""
        source = ".".join(filter(None, (base, node.module)))
        yield source
        yield from (f"{source}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isascii():
        yield from [node.value] if node.value.startswith("edgeforge") else []
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        children = node.orelse
    for child in children:
        yield from _imports(child, package)
