"""What the compiler is asked for, as data that survives a trip through job.json."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgeforge.errors import CompilerError

JOB, RESULT, LOG = "job.json", "result.json", "compile.log"
EXECUTOR = "qnn-htp"
"""of the bundle's target that runs what was compiled, on the emulator"""
_NAME = re.compile(r"^[A-Za-z0-9_.-]+$")


@dataclass(frozen=True)
class GraphJob:
    """One width of a part.

    Attributes:
        name: the QNN graph's name in the binary, e.g. ``prompt_ar128_cl1024_1_of_3``.
        onnx: static-shape QDQ ONNX with integer inputs and outputs.
        feeds: .npz with one array per input, run once right after the compile, in the compiling
            process: the only place where a weight-shared context runs on x86. None: not run.
    """

    name: str
    onnx: Path
    feeds: Path | None = None


@dataclass(frozen=True)
class PartJob:
    """One context binary.

    Attributes:
        name: file stem of the binary.
        graphs: one or more widths of the same slice, widest first.
        soc_model: Qualcomm's SoC number (57: v75, 69: v79, ...).
        out: the folder to make; replaced as a whole, or left as it was on failure.
        weight_sharing: True makes the device binary, which x86 cannot load; False its x86 twin.
        vtcm_mb: tightly coupled memory to plan for, MiB. optimization: HTP's level 0..3.
        dsp_arch: the architecture that the binary must turn out to have; None: not checked.
        failed: where job.json and the log go when it fails; None: ``<out>.failed``.
    """

    name: str
    graphs: tuple[GraphJob, ...]
    soc_model: int
    out: Path
    weight_sharing: bool
    vtcm_mb: int = 8
    optimization: int = 3
    dsp_arch: int | None = None
    failed: Path | None = None

    @property
    def failure(self) -> Path:
        """The folder that a failed job leaves."""
        return self.failed or self.out.with_name(self.out.name + ".failed")

    @property
    def options(self) -> dict[str, str]:
        """The provider's options that shape what is compiled."""
        return {
            "soc_model": str(self.soc_model),
            "vtcm_mb": str(self.vtcm_mb),
            "htp_graph_finalization_optimization_mode": str(self.optimization),
            "enable_block_quant_weight_optimization": "1",  # LPBQ weights become a float island without it
        }

    def check(self) -> None:
        """Refuses what would only fail, or silently go wrong, minutes later: CompilerError."""
        names = [g.name for g in self.graphs]
        bad = [n for n in (self.name, *names) if not _NAME.match(n)]
        if bad:
            raise CompilerError(
                f"part {self.name}: {bad[0]!r} is not a usable name", "use letters, digits, '_', '.' and '-'"
            )
        if not names or len(set(names)) != len(names):
            raise CompilerError(f"part {self.name}: graph names must be given and distinct, got {names}")
        if self.soc_model <= 0:
            raise CompilerError(
                f"part {self.name}: soc_model {self.soc_model} is not a SoC number",
                "without one the compiler silently builds for v68",
            )
        if not 0 <= self.optimization <= 3 or self.vtcm_mb < 0:
            raise CompilerError(
                f"part {self.name}: optimization {self.optimization} (0..3) or vtcm_mb"
                f" {self.vtcm_mb} is out of range",
                "the compiler would only warn and go on",
            )
        for path in [p for g in self.graphs for p in (g.onnx, g.feeds) if p is not None]:
            if not path.is_file():
                raise CompilerError(f"part {self.name}: no such file: {path}")

    def save(self, path: Path) -> None:
        """Writes job.json. Files beside it are named as such, so that they move together; others by absolute path."""
        home = path.resolve().parent

        def plain(value: Path) -> str:
            full = value.resolve()
            return full.name if full.parent == home else str(full)

        text = json.dumps(asdict(self), indent=1, default=plain)
        path.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> PartJob:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        home = path.resolve().parent
        graphs = tuple(
            GraphJob(g["name"], home / g["onnx"], home / g["feeds"] if g["feeds"] else None)
            for g in raw["graphs"]
        )
        failed = home / raw["failed"] if raw["failed"] else None
        return cls(**{**raw, "graphs": graphs, "out": home / raw["out"], "failed": failed})
