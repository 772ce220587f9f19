"""The packages that a decoder became, in the order in which they run; packages.json beside them says what each takes
and gives."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeforge_runtime.manifest import WRITE, Graph, Part, Target, Tensor

from edgeforge.backends.coreml.sharing import Sharing
from edgeforge.backends.coreml.target import EXECUTOR

FILE = "packages.json"
MODEL = "Data/com.apple.CoreML/model.mlmodel"
Boundary = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Package:
    """One package. functions: what each takes and gives, by name; pieces of the logits count as one."""

    file: str
    sharing: Sharing
    functions: Mapping[str, Boundary]

    def dump(self) -> dict[str, Any]:
        return {"file": self.file, "sharing": dataclasses.asdict(self.sharing), "functions": {
            name: [[dataclasses.asdict(t) for t in side] for side in sides] for name, sides in self.functions.items()}}

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Package:
        functions = {name: (_tensors(sides[0]), _tensors(sides[1])) for name, sides in raw["functions"].items()}
        return cls(raw["file"], Sharing(**raw["sharing"]), functions)


def _tensors(rows: Sequence[dict[str, Any]]) -> tuple[Tensor, ...]:
    return tuple(Tensor(row["name"], row["dtype"], tuple(row["shape"]), pieces=tuple(row["pieces"])) for row in rows)


def save(folder: Path, packages: Sequence[Package]) -> None:
    """Writes packages.json into folder."""
    rows = [p.dump() for p in packages]
    (folder / FILE).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def load(folder: Path) -> list[Package]:
    """Reads it."""
    return [Package.parse(row) for row in json.loads((folder / FILE).read_text(encoding="utf-8"))]


def target(packages: Sequence[Package], root: str, widths: Mapping[str, int], context: int,
           dtype: str = "float16") -> Target:
    """The packages as one target, one part each.

    Args:
        root: of the bundle, where they lie ("" or with a slash behind it). widths: new tokens of each function, widest
            first. context: cached tokens that every function reads; slots of the cache where the model keeps it.
        dtype: of floats that are handed in and out (a simulator's may be float32).
    """
    graphs = []
    for name, ar in widths.items():
        parts = [Part(f"{root}{p.file}/{MODEL}", name, *(tuple(_as(t, dtype) for t in side)
                                                          for side in p.functions[name])) for p in packages]
        kept = any(t.name == WRITE for part in parts for t in part.inputs)
        graphs.append(Graph(ar, context if kept else context + ar, tuple(parts)))
    return Target(EXECUTOR, tuple(graphs))


def _as(tensor: Tensor, dtype: str) -> Tensor:
    return tensor if tensor.dtype == "int32" else dataclasses.replace(tensor, dtype=dtype)
