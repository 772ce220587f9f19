"""Where the vendor's libraries are, and which versions this backend was built against."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from edgeforge.errors import CompilerError

DISTRIBUTION, PACKAGE, EP_NAME = "onnxruntime-qnn", "onnxruntime_qnn", "QNNExecutionProvider"
TESTED = "2.7.0"
"""the version that this backend was built against"""
HTP, SYSTEM, GENIE, PROVIDER = (
    "libQnnHtp.so",
    "libQnnSystem.so",
    "libGenie.so",
    "libonnxruntime_providers_qnn.so",
)


@dataclass(frozen=True)
class Wheel:
    """An installed onnxruntime-qnn: the folder of its libraries, its version and its QAIRT version."""

    folder: Path
    version: str
    qairt: str

    def library(self, name: str) -> Path:
        """Path of one library; CompilerError when this wheel does not carry it."""
        path = self.folder / name
        if not path.is_file():
            raise CompilerError(
                f"{DISTRIBUTION} {self.version} has no {name} in {self.folder}",
                f"install the Linux x86-64 wheel: pip install --force-reinstall {DISTRIBUTION}=={TESTED}",
            )
        return path

    def stamp(self) -> dict[str, str]:
        """Versions that decide what comes out of a compile."""
        return {
            DISTRIBUTION: self.version,
            "qairt": self.qairt,
            "onnxruntime": importlib.metadata.version("onnxruntime"),
        }


def find() -> Wheel:
    """The installed wheel, found without importing it; CompilerError says how to install it."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise CompilerError(
            f"the HTP compiler is not installed: no module {PACKAGE}",
            f"pip install 'edgeforge-toolchain[qnn]' (that is {DISTRIBUTION}=={TESTED})",
        )
    folder = Path(spec.origin).parent
    info = folder / "build_and_package_info.py"
    text = info.read_text(encoding="utf-8") if info.is_file() else ""
    qairt = re.search(r"qnn_version\s*=\s*['\"]([^'\"]+)", text)
    return Wheel(folder, importlib.metadata.version(DISTRIBUTION), qairt[1] if qairt else "unknown")
