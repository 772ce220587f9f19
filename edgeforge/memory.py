"""The memory that this process may use: the machine's, or what its control groups (a container's limits) leave of it.

Both versions of Linux' control groups are read, each group up to the root: a limit above binds those below it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

_ENDLESS = 1 << 62


@dataclass(frozen=True)
class Memory:
    """Bytes. total and free are RAM; free counts what the kernel gives back when asked (page cache). swap: its size."""

    total: int
    free: int
    swap: int


def memory(root: Path = Path("/")) -> Memory:
    """What is here now. root: where /proc and /sys lie."""
    host, groups = psutil.virtual_memory(), list(_groups(root))
    return Memory(min([host.total, *(g.total for g in groups)]), min([host.available, *(g.free for g in groups)]),
                  min([psutil.swap_memory().total, *(g.swap for g in groups)]))


@dataclass(frozen=True)
class _Names:
    """A version's files in a group's folder. both: swap is limited together with RAM."""

    limit: str
    used: str
    cached: str
    swap: str
    both: bool


_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
             "memory.memsw.limit_in_bytes", True)
_V2 = _Names("memory.max", "memory.current", "inactive_file", "memory.swap.max", False)


def _groups(root: Path) -> Iterator[Memory]:
    """Every group with a limit that holds this process."""
    try:
        rows = [row.split(":", 2) for row in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return
    mount = root / "sys/fs/cgroup"
    for number, controllers, path in (r for r in rows if len(r) == 3):
        if number == "0":
            place, names = mount, _V2
        elif "memory" in controllers.split(","):
            place, names = mount / "memory", _V1
        else:
            continue
        # A container that sees only its own part of the tree has its group at the mount's root.
        for group in (PurePosixPath(path), *PurePosixPath(path).parents):
            if (found := _group(place / str(group).lstrip("/"), names)) is not None:
                yield found


def _group(folder: Path, names: _Names) -> Memory | None:
    """None for a group that is not there or has no limit ("max")."""
    try:
        limit, used = (int((folder / name).read_text()) for name in (names.limit, names.used))
        stat = dict(row.split() for row in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    # The page cache of files read long ago counts as used until somebody wants the room.
    free = limit - used + int(stat.get(names.cached, 0))
    return Memory(limit, min(max(free, 0), limit), _swap(folder, names, limit))


def _swap(folder: Path, names: _Names, limit: int) -> int:
    try:
        allowed = int((folder / names.swap).read_text())
    except (OSError, ValueError):
        return _ENDLESS
    return max(allowed - limit, 0) if names.both else allowed

