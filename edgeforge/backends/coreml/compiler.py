"""A package written in a process of its own."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from edgeforge.backends.coreml import child, limits, place
from edgeforge.backends.coreml.chain import Package
from edgeforge.backends.coreml.job import Job
from edgeforge.errors import CompilerError


def write(job: Job, timeout_s: float, memory_bytes: int | None = None, failure: Path | None = None) -> list[Package]:
    """Writes the packages that job asks for, all or none.

    Args:
        failure: where the job goes when it fails, with its log; None: `<package>.failed`.

    Raises:
        UnsupportedError: something that the chip does not take (named).
        CompilerError: coremltools is not installed; ChildFailed: it crashed or hung, see child.call.
        EdgeForgeError: a file is missing or damaged, or the package is there already.
    """
    if importlib.util.find_spec(limits.DISTRIBUTION) is None:
        raise CompilerError("coremltools is not installed", 'pip install "edgeforge-toolchain[coreml]"')
    place.require_new(job.package, place.PACKAGE, "a Core ML package")
    partial = job.package.with_name(f".{job.package.name}.partial")
    failure = failure or job.package.with_name(f"{job.package.name}.failed")
    made = child.call(f"{job.package.name}: the Core ML emitter", job.dump(), partial, failure, timeout_s, memory_bytes)
    packages = [Package.parse(row) for row in made["packages"]]
    for package in packages:
        (partial / package.file).rename(job.package.with_name(package.file))
    shutil.rmtree(partial)
    return packages
