"""What is asked of the emitter's process, as data that survives a trip through job.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JOB, RESULT, LOG = "job.json", "result.json", "emit.log"


@dataclass(frozen=True)
class Job:
    """One package.

    graph: folder of the float graph. table: its weights' encodings. palettes: their tables; None without any.
    widths: new tokens of each function by name. past: cached tokens that each reads. package: where it goes.
    """

    graph: Path
    table: Path
    palettes: Path | None
    widths: dict[str, int]
    past: int
    package: Path

    def save(self, path: Path) -> None:
        raw: dict[str, Any] = {"widths": self.widths, "past": self.past, "palettes": None}
        paths = {"graph": self.graph, "table": self.table, "palettes": self.palettes, "package": self.package}
        raw |= {key: str(p.resolve()) for key, p in paths.items() if p is not None}
        path.write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Job:
        raw = json.loads(path.read_text(encoding="utf-8"))
        palettes = Path(raw["palettes"]) if raw["palettes"] else None
        return cls(Path(raw["graph"]), Path(raw["table"]), palettes, raw["widths"], raw["past"], Path(raw["package"]))
