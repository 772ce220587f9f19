"""Thresholds and verdicts: what a stage was measured at, and whether the build may go on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from edgeforge_runtime.typed import read_json

from edgeforge.errors import GateError

FILE = "gate.json"
_LONG = 1000
"""from here on four digits would round away whole numbers"""


@dataclass(frozen=True)
class Check:
    """One measured figure against its threshold; without a threshold it is only reported. gate: the key of the
    recipe's `gates` that sets the threshold (see judged): what was measured outlives what was asked of it.
    """

    name: str
    value: float
    unit: str
    threshold: float | None = None
    sense: Literal["at least", "at most"] = "at least"
    note: str = ""
    gate: str = ""

    @property
    def passed(self) -> bool:
        if self.threshold is None:
            return True
        if math.isnan(self.value):
            return False
        return self.value >= self.threshold if self.sense == "at least" else self.value <= self.threshold

    def __str__(self) -> str:
        return f"{self.name} {figure(self.value)} {self.unit}{f' ({self.bound})' if self.bound else ''}"

    @property
    def bound(self) -> str:
        """The threshold in words; empty without one."""
        return "" if self.threshold is None else f"{self.sense} {figure(self.threshold)}"


def figure(value: float) -> str:
    """As a person reads it: four digits, but nothing is rounded away of a whole number."""
    value = float(value)
    return f"{value:,.0f}" if value.is_integer() or _LONG <= abs(value) < math.inf else f"{value:.4g}"


def of_bits(gate: str, four: bool) -> str:
    """The gate for a model whose weights have 4 bits, or more: unset, they differ."""
    return f"{gate} (4 bits)" if four else gate


def judged(checks: Iterable[Check], limits: Mapping[str, float | None]) -> list[Check]:
    """The same figures against the thresholds of limits (Recipe.limits)."""
    return [replace(c, threshold=limits[c.gate]) if c.gate else c for c in checks]


def save(folder: Path, checks: Iterable[Check]) -> None:
    """Writes the verdicts beside the artifact; infinities become strings, for JSON has none."""
    rows = [{k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(c).items()}
            for c in checks]
    (folder / FILE).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def load(folder: Path) -> list[Check]:
    rows = read_json(folder / FILE)
    return [Check(**{**row, "value": float(row["value"])}) for row in rows]


def require(stage: str, checks: Iterable[Check], hint: str) -> None:
    """Raises GateError when a check failed, naming the stage and every figure that fell short."""
    failed = [c for c in checks if not c.passed]
    if failed:
        notes = "".join(f"\n  {c}{': ' + c.note if c.note else ''}" for c in failed)
        raise GateError(f"gate after {stage} failed:{notes}", hint)
