"""A finished folder takes its place whole, and nothing of anybody else's goes with it."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgeforge import cache, gates, hashes
from edgeforge.build import STAMP
from edgeforge.errors import EdgeForgeError


def finished(place: Path, **files: str) -> Path:
    """A folder that a build made."""
    with cache.whole(place) as work:
        for name, text in files.items():
            (work / name).write_text(text)
        cache.stamp(work, {"key": "k"})
    return place


def test_a_folder_that_another_build_takes_away_is_damaged(tmp_path: Path) -> None:
    place = finished(tmp_path / "stage", model="weights")
    assert cache.damage(place) is None
    (place / "model").unlink()
    assert cache.damage(place) == "model"
    assert cache.damage(place, "device/") is None
    (place / STAMP).unlink()
    assert cache.damage(place) == STAMP


def test_what_another_container_is_making_is_not_swept(tmp_path: Path) -> None:
    """Its process ids mean nothing here: a container numbers its own, and the same ones."""
    code = ("import sys, pathlib; from edgeforge import cache\n"
            "with cache.whole(pathlib.Path(sys.argv[1])) as work:\n"
            "    print(work, flush=True); sys.stdin.read()")
    words = [sys.executable, "-c", code, str(tmp_path / "theirs")]
    if subprocess.run(["unshare", "-rpf", "true"], capture_output=True, check=False).returncode == 0:
        words = ["unshare", "-rpf", "--kill-child", *words]
    maker = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    work = Path(maker.stdout.readline().strip())
    wreck = tmp_path / ".mine.edgeforge-0badcafe"
    for folder in (wreck, tmp_path / ".mine.edgeforge-backup"):
        folder.mkdir()
    finished(tmp_path / "mine")
    assert work.is_dir()
    maker.kill()
    maker.communicate()
    deadline = time.monotonic() + 10
    while work.exists() and time.monotonic() < deadline:  # its locks end a moment after its pipes
        finished(tmp_path / "mine")
    assert not wreck.exists()
    assert not work.exists()
    assert (tmp_path / ".mine.edgeforge-backup").is_dir()


def test_a_link_to_the_folder_stays_a_link(tmp_path: Path) -> None:
    there = finished(tmp_path / "big disk" / "bundle", model="old")
    link = tmp_path / "bundle"
    link.symlink_to(there)
    finished(link, model="new")
    assert link.is_symlink()
    assert (there / "model").read_text() == "new"
    assert sorted(p.name for p in [*tmp_path.iterdir(), *there.parent.iterdir()]) == ["big disk", "bundle", "bundle"]


def test_a_folder_and_a_link_to_it_have_one_lock(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "bundle")
    waits: list[str] = []
    with cache.one_at_a_time(tmp_path / "bundle", tmp_path / "locks", lambda: None):
        def wait() -> None:
            waits.append("waits")
            raise InterruptedError

        with pytest.raises(InterruptedError), cache.one_at_a_time(tmp_path / "link", tmp_path / "locks", wait):
            pass
    assert waits == ["waits"]


def test_locks_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    name = hashlib.sha256(os.fsencode(tmp_path / "bundle")).hexdigest()[:20] + ".lock"
    (tmp_path / "locks" / name).mkdir()  # refuses root, too, for whom nothing is read-only
    with pytest.raises(EdgeForgeError, match="locks"), \
            cache.one_at_a_time(tmp_path / "bundle", tmp_path / "locks", lambda: None):
        pass


@pytest.mark.parametrize(("error", "says", "blamed"), [
    (FileNotFoundError(errno.ENOENT, "No such file or directory", "/models/model.safetensors"),
     "/models/model.safetensors: No such file or directory", False),
    (PermissionError(errno.EACCES, "Permission denied", "/models/model.safetensors"), "/models/model", False),
    (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "ConnectionResetError: Connection", False),
    (OSError(errno.ENOSPC, "No space left on device"), "bundle: No space left", True),
    (OSError(errno.EROFS, "Read-only file system"), "bundle: Read-only", True),
    (OSError("1234567 requested and 17 written"), "bundle: 1234567 requested", True),
    (PermissionError(errno.EACCES, "Permission denied", "{work}/model.onnx"), "model.onnx: Permission denied", True),
])
def test_out_is_blamed_only_for_what_happened_there(error: OSError, says: str, blamed: bool, tmp_path: Path) -> None:
    def stage() -> None:
        with cache.whole(tmp_path / "bundle") as work:
            if error.filename:
                error.filename = error.filename.format(work=work)
            raise error

    with pytest.raises(EdgeForgeError) as caught:
        stage()
    assert says in caught.value.message
    assert ("`out`" in caught.value.hint) is blamed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["b" * 255, "ü" * 127])
def test_a_name_as_long_as_the_disk_takes_is_a_place_like_any_other(tmp_path: Path, name: str) -> None:
    """The folder that is made first has a mark in its name, and must not be longer for it."""
    for text in ("first", "second"):
        finished(tmp_path / name, model=text)
    assert (tmp_path / name / "model").read_text() == "second"
    assert [p.name for p in tmp_path.iterdir()] == [name]


DEEP = "[" * 100_000
"""JSON that Python's parser gives up on by recursion"""


def test_json_nested_too_deeply_is_no_stamp_no_gates_and_no_memory(tmp_path: Path) -> None:
    place = finished(tmp_path / "bundle")
    (place / STAMP).write_text(DEEP)
    assert not cache.done(place, "k", tmp_path / "locks")
    assert cache.damage(place) == STAMP
    with pytest.raises(EdgeForgeError, match="cannot be read: nested too deeply"):
        cache.guard(place)
    (place / gates.FILE).write_text(DEEP)
    with pytest.raises(ValueError, match="nested too deeply"):
        gates.load(place)
    (tmp_path / "memory.json").write_text(DEEP)
    file = place / STAMP
    assert hashes.file_hashes([file], tmp_path / "memory.json") == {file: hashlib.sha256(DEEP.encode()).hexdigest()}


def test_a_folder_copied_without_its_times_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, locks = finished(tmp_path / "bundle", model="weights"), tmp_path / "locks"
    locks.mkdir()
    os.utime(place / "model", ns=(1, 1))
    with cache.one_at_a_time(place, locks, lambda: None):
        assert cache.done(place, "k", locks)  # nobody else writes while a build is at it
    reads: list[Path] = []
    real = cache.digest
    monkeypatch.setattr(cache, "digest", lambda path: reads.append(path) or real(path))
    for _ in range(3):
        assert cache.done(place, "k", locks)
    assert reads == [place / "model"]
    assert sorted(p.name for p in place.iterdir()) == sorted(["model", STAMP])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bundle", "locks"]
    (place / "model").write_text("WEIGHTS")
    assert not cache.done(place, "k", locks)


def test_a_folder_that_cannot_be_written_is_still_found(tmp_path: Path) -> None:
    place = finished(tmp_path / "bundle", model="weights")
    os.utime(place / "model", ns=(1, 1))
    (tmp_path / "file").write_text("")
    assert cache.done(place, "k", tmp_path / "file" / "locks")
