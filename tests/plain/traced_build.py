"""Builds a recipe's plain graph and prints, for each stage that ran, which modules of ours ran and which libraries
they called: {stage: {"modules": [...], "called": [...]}}."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import edgeforge_runtime

import edgeforge
from edgeforge import pipeline, recipe
from edgeforge.gates import Check
from edgeforge.stages.plan import Stage

OURS = {Path(p.__file__).parent: p.__name__ for p in (edgeforge, edgeforge_runtime)}


def module(file: str) -> str | None:
    """The dotted name of a module of ours."""
    for root, package in OURS.items():
        if file.startswith(f"{root}/"):
            parts = Path(file).relative_to(root).with_suffix("").parts
            return ".".join([package, *(parts[:-1] if parts[-1] == "__init__" else parts)])
    return None


def main(path: Path) -> None:
    found: dict[str, dict[str, set[str]]] = {}
    run = Stage.run

    def traced(stage: Stage, *args: Any) -> list[Check]:
        modules, called = set(), set()

        def see(frame: FrameType, event: str, arg: Any) -> None:
            if event == "c_call":
                caller: FrameType | None = frame
                name = getattr(arg, "__module__", None) or type(getattr(arg, "__self__", None)).__module__
            elif event == "call":
                caller, name = frame.f_back, frame.f_globals.get("__name__")
                if frame.f_code.co_name != "<module>":  # an import that nothing is called of decides nothing
                    modules.add(module(frame.f_code.co_filename))
            else:
                return
            if caller is not None and module(caller.f_code.co_filename) and isinstance(name, str):
                called.add(name.split(".")[0])

        threading.setprofile(see)
        sys.setprofile(see)
        try:
            return run(stage, *args)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
            found[stage.name] = {"modules": modules - {None}, "called": called}

    Stage.run = traced  # type: ignore[method-assign]
    pipeline.build(recipe.load(path), lambda event: None)
    print(json.dumps({name: {k: sorted(v) for k, v in seen.items()} for name, seen in found.items()}))


main(Path(sys.argv[1]))
