"""Where the vendor's libraries are, and which versions this backend was built against."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from edgeforge.errors import CompilerError

DISTRIBUTION, PACKAGE, EP_NAME = "onnxruntime-qnn", "onnxruntime_qnn", "QNNExecutionProvider"
TESTED = "2.7.0"
"""the version that this backend was built against"""
HTP, PREPARE, SYSTEM, GENIE, PROVIDER = (
    "libQnnHtp.so",
    "libHtpPrepare.so",
    "libQnnSystem.so",
    "libGenie.so",
    "libonnxruntime_providers_qnn.so",
)
_AGAIN = f"install the Linux x86-64 wheel: pip install --force-reinstall --no-deps {DISTRIBUTION}=={TESTED}"
_ELF = struct.Struct("<18xH20xQ10xHH")  # e_machine; where the section table (the file's end) is, entry size, count
_MACHINES = {0x3E: "x86_64", 0xB7: "aarch64", 0x03: "i686", 0x28: "armv7l", 0xF3: "riscv64"}


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
                _AGAIN,
            )
        return path

    def check(self) -> None:
        """Refuses a wheel that this machine cannot load: CompilerError names the library and what it is."""
        for name in (PROVIDER, HTP, PREPARE, SYSTEM):
            path = self.library(name)
            with path.open("rb") as file:
                head = file.read(_ELF.size)
            size = path.stat().st_size
            if len(head) < _ELF.size or head[:4] != b"\x7fELF":
                raise CompilerError(f"{path} is not a Linux library ({size:,} bytes)", _AGAIN)
            machine, sections, entry, count = _ELF.unpack(head)
            if (built := _MACHINES.get(machine, "another machine")) != platform.machine():
                raise CompilerError(f"{path} is built for {built}, and this machine is {platform.machine()}", _AGAIN)
            if (end := sections + entry * count) > size:  # loading it would end the process with SIGBUS
                raise CompilerError(f"{path} is truncated: {size:,} bytes of at least {end:,}", _AGAIN)

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
