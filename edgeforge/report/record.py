"""The report as data: what was built from what, every gate's figure, and what was not seen."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgeforge import __version__, cache, gates
from edgeforge.build import Build
from edgeforge.gates import Check

REPORT = "report.json"


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
    context: int | None
    """tokens; None for a plain graph"""
    edgeforge: str
    stages: tuple[StageReport, ...]
    not_seen: tuple[str, ...]

    @property
    def seconds(self) -> float:
        return sum(s.seconds for s in self.stages)

    @property
    def peak_mib(self) -> int:
        """Resident memory of the build's whole process tree at its largest."""
        return max(s.peak_rss_mib for s in self.stages)

    @property
    def bounds(self) -> tuple[str, ...]:
        """What the whole build took, beside what it may take for a 135M language model on 2 cores."""
        took = f"{self.seconds:.0f} s in all stages", f"{self.peak_mib / 1024:.1f} GiB at most, the whole process tree"
        if self.context is None:
            return took
        return f"{took[0]}; bound for SmolLM2-135M on 2 cores: 900 s", f"{took[1]}; bound: 6 GiB"

    def save(self, path: Path) -> None:
        """JSON without infinities: they become strings."""
        plain = _plain(asdict(self) | {"bounds": list(self.bounds)})
        path.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")


def collect(build: Build, sources: dict[str, Path], not_seen: tuple[str, ...], context: int | None) -> Report:
    """Reads every finished stage's stamp and gate; sources are in the order of the build."""
    stages = tuple(_stage(build, path) for path in sources.values())
    return Report(build.source.name, build.chip.name, context, __version__, stages, not_seen)


def _stage(build: Build, path: Path) -> StageReport:
    stamp, checks = cache.read_stamp(path), gates.judged(gates.load(path), build.recipe.limits)
    return StageReport(stamp["stage"], stamp["seconds"], stamp["peak_rss_mib"], tuple(checks), stamp["tools"])


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
