"""How many cores this process may really use."""

from __future__ import annotations

import os
from pathlib import Path

_CPU = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def physical_cores() -> int:
    """Physical cores in this process's affinity, at most its container's CPU quota; at least 1."""
    if not hasattr(os, "sched_getaffinity"):
        return max(1, os.cpu_count() or 1)
    cpus = os.sched_getaffinity(0)
    cores = {_siblings(cpu) for cpu in cpus}
    return max(1, min(len(cores), _quota()))


def _siblings(cpu: int) -> str:
    try:
        return (_CPU / f"cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


def _quota() -> int:
    """CPUs that the container may use, rounded up; a large number without a limit."""
    try:
        quota, period = _QUOTA.read_text().split()
        return -(-int(quota) // int(period))
    except (OSError, ValueError):
        return 1 << 16
