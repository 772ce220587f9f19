"""What a package says of itself: functions, ops, and the bytes that each function reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgeforge.backends.coreml import limits
from edgeforge.errors import CompilerError

_SYSTEMS = {8: "iOS 17, macOS 14", 9: "iOS 18, macOS 15", 10: "iOS 26, macOS 26"}
"""the oldest that read a package, by its specification version"""


def describe(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """EdgeForgeError: no package, or a damaged one."""
    return [_facts(path) for path in paths]


def brief(facts: dict[str, Any]) -> dict[str, Any]:
    """One row of a bundle's table."""
    return {"bytes": facts["bytes"], "functions": " ".join(f["name"] for f in facts["functions"]),
            "core ml": facts["core_ml"]}


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
    return {"kind": "Core ML package", "path": str(path), "core_ml": _SYSTEMS.get(version, f"specification {version}"),
            "bytes": sum(p.stat().st_size for p in path.rglob("*") if p.is_file()),
            "speaks_against_the_neural_engine": against,
            "functions": [{"name": name, **_function(f)} for name, f in functions.items()]}


def _function(function: Any) -> dict[str, Any]:
    kinds = Counter(op.type for op in function.ops if op.type != "const")
    return {"inputs": [{"name": i.name, "type": i.type.lower(), "shape": list(i.shape)} for i in function.inputs],
            "outputs": list(function.outputs), "ops": dict(sorted(kinds.items()))}
