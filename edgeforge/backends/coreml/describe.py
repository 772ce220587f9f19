"""What a package or an asset says of itself: functions, ops, and who reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgeforge.backends.coreml import limits, place
from edgeforge.errors import CompilerError
from edgeforge.targets import APPLE_SYSTEMS


def describe(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """EdgeForgeError: neither a package nor an asset, or a damaged one."""
    return [_asset(path) if path.suffix == place.ASSET else _facts(path) for path in paths]


def brief(facts: dict[str, Any]) -> dict[str, Any]:
    """One row of a bundle's table."""
    functions = " ".join(f["name"] for f in facts["functions"])
    return {"kind": facts["kind"], "bytes": facts["bytes"], "functions": functions, "read by": facts["read_by"]}


def _asset(path: Path) -> dict[str, Any]:
    from edgeforge.backends.coreml.coreai import account

    return account.facts(path)


def _readers(specification: int) -> str:
    """The systems that read packages of a specification version."""
    oldest = next((s for s in APPLE_SYSTEMS.values() if s.specification == specification), None)
    return f"{oldest.words} or later" if oldest is not None else f"specification {specification}"


def _facts(path: Path) -> dict[str, Any]:
    if why := limits.problem():
        raise CompilerError(f"{path.name}: {why}", limits.INSTALL)
    from edgeforge.backends.coreml import lint
    from edgeforge.backends.coreml.interpret import program

    functions, version = program.load(path), program.version(path)
    try:
        against = lint.lint(functions)
    except (TypeError, ValueError, LookupError) as error:
        raise CompilerError(f"{path} is a damaged Core ML package: {type(error).__name__}: {error}") from error
    return {"kind": "Core ML package", "path": str(path), "read_by": _readers(version),
            "bytes": sum(p.stat().st_size for p in path.rglob("*") if p.is_file()),
            "speaks_against_the_neural_engine": against,
            "functions": [{"name": name, **_function(f)} for name, f in sorted(functions.items())]}


def _function(function: Any) -> dict[str, Any]:
    kinds = Counter(op.type for op in function.ops if op.type != "const")
    return {"inputs": [{"name": i.name, "type": i.type.lower(), "shape": list(i.shape)} for i in function.inputs],
            "outputs": list(function.outputs), "ops": dict(sorted(kinds.items()))}
