"""What the builder is asked for, as data that survives a trip through engine_job.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgeforge.errors import CompilerError

JOB, RESULT, LOG, LAYERS, ENGINE = "engine_job.json", "result.json", "build.log", "layers.txt", "model.engine"
ONNX, SUMMARY = "onnx", "layers.json"
"""beside the engine in compile's artifact and in the bundle: what it is built from, and what is in it"""
REFUSED = "refused: "
"""what a line of the log begins with that names a node: its name, a tab, the reason"""
EXECUTOR = "tensorrt"
"""of the bundle's target that a machine with the GPU runs"""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class EngineJob:
    """One engine.

    Attributes:
        onnx: what emit wrote.
        compute: TensorRT's names of the GPUs that it has to run on ("SM86"); empty: the GPU of this machine.
        profiles: every input's shape, which is fixed, for each optimization profile, widest first.
        out: the folder to make; replaced as a whole, or left as it was on failure.
        failed: where the job and the log go when it fails; None: ``<out>.failed``.
    """

    onnx: Path
    compute: tuple[str, ...]
    profiles: tuple[Mapping[str, Shape], ...]
    out: Path
    failed: Path | None = None

    @property
    def failure(self) -> Path:
        """The folder that a failed job leaves."""
        return self.failed or self.out.with_name(self.out.name + ".failed")

    def check(self) -> None:
        """CompilerError: what would only fail inside the builder."""
        if not self.onnx.is_file():
            raise CompilerError(f"no such file: {self.onnx}")
        if not self.profiles:
            raise CompilerError(f"{self.onnx}: an engine without optimization profiles")

    def save(self, path: Path) -> None:
        """Writes it as JSON; paths absolute."""
        text = json.dumps(asdict(self), indent=1, default=lambda p: str(p.resolve()))
        path.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> EngineJob:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        profiles = tuple({name: tuple(shape) for name, shape in p.items()} for p in raw["profiles"])
        failed = Path(raw["failed"]) if raw["failed"] else None
        return cls(Path(raw["onnx"]), tuple(raw["compute"]), profiles, Path(raw["out"]), failed)
