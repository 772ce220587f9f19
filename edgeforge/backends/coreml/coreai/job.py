"""What is asked of Core AI's process, as data that survives a trip through judge.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

JUDGE, VERDICT, LOG = "judge.json", "verdict.json", "coreai.log"
Floats = Literal["float32", "float16"]


@dataclass(frozen=True)
class Judge:
    """One decoder as assets, and one conversation through each.

    quantized: the artifact whose float graph, table and palettes are taken. ids: file of [windows, tokens], of which
    the first window is read. prefill, context: see target.widths. assets: where to write, by what flows.
    """

    quantized: Path
    ids: Path
    prefill: int
    context: int
    threads: int
    assets: Mapping[Floats, Path]

    def save(self, path: Path) -> None:
        raw = {"quantized": str(self.quantized.resolve()), "ids": str(self.ids.resolve()), "prefill": self.prefill,
               "context": self.context, "threads": self.threads,
               "assets": {floats: str(p.resolve()) for floats, p in self.assets.items()}}
        path.write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Judge:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return cls(Path(raw["quantized"]), Path(raw["ids"]), raw["prefill"], raw["context"], raw["threads"],
                   {floats: Path(p) for floats, p in raw["assets"].items()})
