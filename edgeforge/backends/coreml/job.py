"""What is asked of the emitter, as data that survives a trip through coreml_job.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """One decoder.

    graph: folder of the float graph. table: its weights' encodings. palettes: their tables; None without any.
    widths: new tokens of each function by name. past: cached tokens that each reads. package: where it goes; of
    several, the name that theirs are made from. most, state, specification: see decoder.Wanted.
    """

    graph: Path
    table: Path
    palettes: Path | None
    widths: dict[str, int]
    past: int
    package: Path
    most: int = 1 << 40
    state: bool = False
    specification: int = 9

    def dump(self) -> dict[str, Any]:
        """As JSON; of the package only its name, for it is written beside the job."""
        inputs = {"graph": self.graph, "table": self.table, "palettes": self.palettes}
        return {"job": "emit", "widths": self.widths, "past": self.past, "package": self.package.name,
                "most": self.most, "state": self.state, "specification": self.specification} | {
            key: str(path.resolve()) if path is not None else None for key, path in inputs.items()}

    @classmethod
    def parse(cls, raw: dict[str, Any], folder: Path) -> Job:
        palettes = Path(raw["palettes"]) if raw["palettes"] else None
        return cls(Path(raw["graph"]), Path(raw["table"]), palettes, raw["widths"], raw["past"],
                   folder / raw["package"], raw["most"], raw["state"], raw["specification"])


def run(job: Job) -> dict[str, Any]:
    """Writes the packages; what each holds."""
    from edgeforge.encodings import Table
    from edgeforge.graph import store
    from edgeforge.quantize.weights import palette_file

    palettes = palette_file.load(job.palettes) if job.palettes is not None else {}
    model, table = store.load(job.graph), Table.load(job.table)

    from edgeforge.backends.coreml import decoder  # seconds

    wanted = decoder.Wanted(job.most, job.state, job.specification)
    made = decoder.write(model, table, palettes, job.widths, job.past, job.package, wanted)
    return {"packages": [p.dump() for p in made]}
