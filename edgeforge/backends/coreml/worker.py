"""Child process: does one job. ``python -m edgeforge.backends.coreml.worker coreml_job.json``

result.json beside the job says how it went: what was made of it, or what was refused and why.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgeforge.backends import orphan
from edgeforge.backends.coreml.child import RESULT
from edgeforge.errors import EdgeForgeError


def _emit(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    from edgeforge.backends.coreml import job

    return job.run(job.Job.parse(raw, folder))


def _judge(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    from edgeforge.backends.coreml import judge

    return judge.run(judge.Case.parse(raw))


def _coreai(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    from edgeforge.backends.coreml.coreai import judge

    return judge.run(judge.Judge.parse(raw), folder)


def _prove(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    from edgeforge.backends.coreml import proof

    return {"wrong": proof.product(folder / "product.mlpackage")}


JOBS: dict[str, Callable[[dict[str, Any], Path], dict[str, Any]]] = {"emit": _emit, "judge": _judge, "prove": _prove,
                                                                      "coreai": _coreai}


def main(argv: list[str]) -> int:
    orphan.end_with_parent()
    path = Path(argv[0]).resolve()
    raw = json.loads(path.read_text(encoding="utf-8"))
    try:
        answer: dict[str, Any] = {"done": JOBS[raw["job"]](raw, path.parent)}
    except EdgeForgeError as error:
        answer = {"refused": {"kind": type(error).__name__, "message": error.message, "hint": error.hint}}
    path.with_name(RESULT).write_text(json.dumps(answer) + "\n", encoding="utf-8")
    return int("done" not in answer)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
