"""The report as data: what was built from what, every gate's figure, and what was not seen."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgeforge import __version__, gates
from edgeforge.build import STAMP, Build
from edgeforge.gates import Check

NOT_SEEN = (
    "No device was used: latency, memory and accuracy on a phone are not measured here.",
    "The device binary with shared weights cannot be loaded on x86. Its graphs ran in the process that "
    "compiled them, and it and its unshared x86 twin were read back and compared: graph names, inputs, "
    "outputs, encodings, op counts, chip.",
    "Emulator times say nothing about device times.",
)


@dataclass(frozen=True)
class StageReport:
    name: str
    seconds: float
    peak_rss_mib: int
    checks: tuple[Check, ...]
    tools: dict[str, str | None]


@dataclass(frozen=True)
class Report:
    model: str
    chip: str
    context: int
    edgeforge: str
    stages: tuple[StageReport, ...]
    not_seen: tuple[str, ...] = NOT_SEEN

    @property
    def seconds(self) -> float:
        return sum(s.seconds for s in self.stages)

    @property
    def peak_mib(self) -> int:
        """Resident memory of the build's whole process tree at its largest."""
        return max(s.peak_rss_mib for s in self.stages)

    def save(self, path: Path) -> None:
        """JSON without infinities: they become strings."""
        path.write_text(json.dumps(_plain(asdict(self)), indent=1) + "\n", encoding="utf-8")


def collect(build: Build, sources: dict[str, Path]) -> Report:
    """Reads every finished stage's stamp and gate; sources are in the order of the build."""
    stages = tuple(_stage(path) for path in sources.values())
    return Report(build.checkpoint.folder.name, build.chip.name, build.context, __version__, stages)


def _stage(path: Path) -> StageReport:
    stamp = json.loads((path / STAMP).read_text(encoding="utf-8"))
    return StageReport(stamp["stage"], stamp["seconds"], stamp["peak_rss_mib"], tuple(gates.load(path)), stamp["tools"])


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
