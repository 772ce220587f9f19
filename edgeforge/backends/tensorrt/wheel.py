"""TensorRT's Python module on this machine: TensorRT-RTX, or the enterprise edition where only that is there.

`tensorrt_rtx` (pip, from 1.7 on) builds engines for any RTX GPU without a driver. `tensorrt` (10.16 and later) has the
same calls and builds for the GPU that it finds; on a Jetson there is nothing else.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from dataclasses import dataclass
from types import ModuleType

from packaging.version import InvalidVersion, Version

from edgeforge.errors import CompilerError

DISTRIBUTION = "tensorrt-rtx-cu12"
TESTED = "1.7.1.116"
INSTALL = f'pip install "{DISTRIBUTION}>=1.7"'


@dataclass(frozen=True)
class Edition:
    """module: to import. distributions: that hold it. least: version; earlier ones fail, or lack TensorScatter.

    crosses: builds for a GPU that is not in this machine.
    """

    module: str
    distributions: tuple[str, ...]
    least: str
    crosses: bool


RTX = Edition("tensorrt_rtx", (DISTRIBUTION, "tensorrt-rtx-cu13", "tensorrt-rtx"), "1.7", crosses=True)
ENTERPRISE = Edition("tensorrt", ("tensorrt-cu12", "tensorrt-cu13", "tensorrt"), "10.16", crosses=False)
DECISIVE = (*RTX.distributions, *ENTERPRISE.distributions)


@dataclass(frozen=True)
class Found:
    """An edition that is installed, and its version."""

    edition: Edition
    version: str

    def load(self) -> ModuleType:
        """Imports it. CompilerError: its libraries do not load."""
        try:
            return importlib.import_module(self.edition.module)
        except (ImportError, OSError, AttributeError) as error:
            raise CompilerError(f"{self.edition.module} {self.version} cannot be imported: {error}",
                                f"{INSTALL} --force-reinstall") from error

    def stamp(self) -> dict[str, str]:
        return {self.edition.module: self.version}


def find() -> Found:
    """The edition to build with, without importing it.

    Raises:
        CompilerError: none is installed, or one that is too old.
    """
    for edition in (RTX, ENTERPRISE):
        if _is_there(edition.module):
            return _recent(Found(edition, _version(edition)))
    raise CompilerError("TensorRT is not installed: neither tensorrt_rtx nor tensorrt can be imported", INSTALL)


def _is_there(module: str) -> bool:
    """A folder of that name on the way (of sources, of models) is a namespace to Python, and no package."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None


def _recent(found: Found) -> Found:
    try:
        recent = Version(found.version) >= Version(found.edition.least)
    except InvalidVersion:
        recent = False
    if not recent:
        raise CompilerError(f"{found.edition.module} {found.version} is installed, and {found.edition.least} or later "
                            "is needed", INSTALL)
    return found


def _version(edition: Edition) -> str:
    for name in edition.distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return str(getattr(importlib.import_module(edition.module), "__version__", "0"))  # from a tar file or apt
