"""An engine's own account, as far as it can be read without a GPU: its header, and the summary that lies beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgeforge_runtime.typed import read_json

from edgeforge.backends.tensorrt import header, trtexec
from edgeforge.backends.tensorrt.job import ONNX, SUMMARY


def describe(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """CompilerError: no engine of TensorRT-RTX, or a truncated one."""
    return [_facts(path) for path in paths]


def brief(facts: dict[str, Any]) -> dict[str, Any]:
    """One row of a bundle's table."""
    return {"bytes": facts["bytes"], "compute": facts["compute"], "tensorrt": facts["tensorrt"],
            "profiles": facts.get("profiles", "")}


def _facts(path: Path) -> dict[str, Any]:
    if _made_on_its_gpu(path):
        return {"kind": "TensorRT engine", "path": str(path), "bytes": path.stat().st_size, "compute": "the GPU that "
                "built it", "tensorrt": "the one that built it", "runs_on": "the machine that built it"}
    found = header.read(path)
    facts = {"kind": "TensorRT-RTX engine", "path": str(path), "bytes": path.stat().st_size,
             "compute": ", ".join(found.compute), "tensorrt": found.version,
             "runs_on": "a GPU of these compute capabilities; nothing can load it here"}
    return facts | _summary(path.with_name(SUMMARY))


def _made_on_its_gpu(path: Path) -> bool:
    """By the bundle's own command (trtexec.py), where no engine came with it: what TensorRT other than RTX writes, only
    that TensorRT reads."""
    came_with_it = path.with_name(SUMMARY).is_file() or not (path.parent / ONNX / trtexec.SCRIPT).is_file()
    try:
        return not came_with_it and not header.is_rtx(path)
    except OSError:
        return False


def _summary(path: Path) -> dict[str, Any]:
    """What the build wrote beside the engine; nothing when it is not there or damaged."""
    try:
        raw = read_json(path)
        profiles = sorted({layer["profile"] for layer in raw["layers"]})
        kinds = [Counter(x["kind"] for x in raw["layers"] if x["profile"] == p) for p in profiles]
        return {"profiles": len(profiles), "weights_bytes": raw["weights_bytes"],
                "activation_bytes": raw["activation_bytes"],
                "layers": [{"profile": p, **dict(sorted(k.items()))} for p, k in zip(profiles, kinds, strict=True)],
                "inputs": [{"name": n, "shapes": ", ".join("x".join(map(str, shape)) for shape in shapes)}
                           for n, shapes in raw["inputs"].items()]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
