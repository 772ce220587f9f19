"""What only a strange file, argument or machine does: still a message, never a traceback."""

from __future__ import annotations

import os
import pwd
import zipfile
from pathlib import Path

import numpy as np
import pytest

from edgeforge import cache, doctor
from edgeforge.build import STAMP
from edgeforge.calibrate import samples
from edgeforge.checkpoint.hashes import default_cache, file_hashes
from edgeforge.cli import _guarded, app
from edgeforge.errors import EdgeForgeError, RecipeError

DEEP = '{"a": ' * 100_000


@pytest.mark.parametrize("what", ["x" * 300, "y" * 5000, "a\0b", "/".join(["d" * 200] * 30)])
def test_a_message_that_no_file_system_takes_as_a_name(what: str) -> None:
    with pytest.raises(EdgeForgeError, match="no known cause for"):
        doctor.explain(what)


@pytest.mark.parametrize("name", ["deep.json", "deep.encodings", STAMP, "manifest.json", "report.json"])
def test_json_without_an_end(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "report.json":
        (tmp_path / STAMP).write_text('{"stage": "bundle", "files": {}}')
    (tmp_path / name).write_text(DEEP)
    whole = name.startswith("deep")
    assert _guarded(lambda: app(["inspect", str(tmp_path / name if whole else tmp_path)], standalone_mode=False)) == 1
    assert name in capsys.readouterr().err


def test_a_stamp_without_an_end_is_no_finished_stage(tmp_path: Path) -> None:
    (tmp_path / STAMP).write_text(DEEP)
    assert not cache.done(tmp_path, "key")
    with pytest.raises(EdgeForgeError, match="cannot be read"):
        cache.guard(tmp_path)


def test_samples_that_claim_more_than_there_is(tmp_path: Path) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 46,)}
    with zipfile.ZipFile(tmp_path / "s.npz", "w") as archive, archive.open("x.npy", "w") as entry:
        np.lib.format.write_array_header_1_0(entry, header)
        entry.write(bytes(64))
    with pytest.raises(RecipeError, match=r"model\.calibration: .*s\.npz claims more"):
        samples.load(tmp_path / "s.npz", [samples.Input("x", "float32", (4,))])


def test_a_lock_that_cannot_be_taken_is_named(tmp_path: Path) -> None:
    """As in a folder of locks that is read-only: what fails is the lock's own file."""
    with cache.one_at_a_time(tmp_path / "place", tmp_path / "locks", lambda: None):
        pass
    (lock,) = (tmp_path / "locks").iterdir()
    lock.unlink()
    lock.mkdir()
    with pytest.raises(EdgeForgeError, match=lock.name), cache.one_at_a_time(
            tmp_path / "place", tmp_path / "locks", lambda: pytest.fail("nobody has it")):
        pass


def test_a_user_without_a_home_remembers_no_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user: a number without an entry in passwd."""
    def unknown(user: int) -> pwd.struct_passwd:
        raise KeyError(user)

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    file = tmp_path / "weights"
    file.write_bytes(b"abc")
    assert default_cache() is None
    assert file_hashes([file], default_cache())[file].startswith("ba7816bf")
    assert os.listdir(tmp_path) == ["weights"]
