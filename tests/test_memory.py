"""How much memory is here: the machine's, and what control groups of both versions leave of it."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from edgeforge.memory import memory

GIB = 1 << 30


def group(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")


V2 = {"proc/self/cgroup": "0::/box/task",
      "sys/fs/cgroup/box/memory.max": str(2 * GIB), "sys/fs/cgroup/box/memory.current": str(2 * GIB - 4096),
      "sys/fs/cgroup/box/memory.stat": f"anon 1\ninactive_file {GIB}", "sys/fs/cgroup/box/memory.swap.max": "0",
      "sys/fs/cgroup/box/task/memory.max": "max", "sys/fs/cgroup/box/task/memory.current": "1",
      "sys/fs/cgroup/box/task/memory.stat": "inactive_file 0"}
V1 = {"proc/self/cgroup": "4:cpu,memory:/docker/abc\n1:cpu:/",  # a container sees its own group as the root
      "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2 * GIB),
      "sys/fs/cgroup/memory/memory.usage_in_bytes": str(2 * GIB - 4096),
      "sys/fs/cgroup/memory/memory.memsw.limit_in_bytes": str(2 * GIB),
      "sys/fs/cgroup/memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}"}


@pytest.mark.parametrize("files", [V1, V2])
def test_a_containers_limit_binds_and_its_page_cache_is_free(tmp_path: Path, files: dict[str, str]) -> None:
    """A container that has read a large file: all used, nearly all of it cache."""
    group(tmp_path, files)
    found = memory(tmp_path)
    assert (found.total, found.free, found.swap) == (2 * GIB, GIB + 4096, 0)


@pytest.mark.parametrize("files", [
    {}, {"proc/self/cgroup": "nonsense\n0::/"}, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "max"},
    V1 | {"sys/fs/cgroup/memory/memory.limit_in_bytes": str((1 << 63) - 4096),
          "sys/fs/cgroup/memory/memory.memsw.limit_in_bytes": str((1 << 63) - 4096)},
])
def test_without_a_limit_it_is_the_machines(tmp_path: Path, files: dict[str, str]) -> None:
    group(tmp_path, files)
    assert memory(tmp_path).total == psutil.virtual_memory().total


def test_more_cache_than_is_used_never_makes_more_than_the_limit(tmp_path: Path) -> None:
    group(tmp_path, V2 | {"sys/fs/cgroup/box/memory.stat": f"inactive_file {8 * GIB}"})
    assert memory(tmp_path).free <= 2 * GIB


def test_here() -> None:
    found = memory()
    assert 0 < found.free <= found.total <= psutil.virtual_memory().total
