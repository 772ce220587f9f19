"""The fingerprint: contents alone, and cheap the second time."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgeforge.checkpoint import open_checkpoint


class TestFingerprint:
    def test_of_contents_alone(self, folder: Path, tmp_path: Path, cache: Path) -> None:
        here = open_checkpoint(folder).fingerprint(cache)
        (folder / "README.md").write_text("not part of it")
        moved = folder.rename(tmp_path / "elsewhere")
        assert open_checkpoint(moved).fingerprint(cache) == here
        assert open_checkpoint(moved).fingerprint(tmp_path / "other.json") == here

    @pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja", "merges.txt"])
    def test_changes_with_each_file(self, folder: Path, cache: Path, name: str) -> None:
        before = open_checkpoint(folder).fingerprint(cache)
        file = folder / name
        file.write_text((file.read_text() if file.exists() else "") + " ")
        assert open_checkpoint(folder).fingerprint(cache) != before

    def test_changes_with_one_bit_of_a_weight(self, folder: Path, cache: Path) -> None:
        before = open_checkpoint(folder).fingerprint(cache)
        file = folder / "model.safetensors"
        times = file.stat()
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # as `cp -p` of another fine-tune would
        assert open_checkpoint(folder).fingerprint(cache) != before

    def test_second_call_reads_nothing(
        self, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = open_checkpoint(folder).fingerprint(cache)
        monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("read again"))
        assert open_checkpoint(folder).fingerprint(cache) == before

    @pytest.mark.parametrize("damage", ["", "[]", '{"x": 1}', "null"])
    def test_damaged_cache_is_ignored(self, folder: Path, cache: Path, damage: str) -> None:
        before = open_checkpoint(folder).fingerprint(cache)
        cache.write_text(damage)
        assert open_checkpoint(folder).fingerprint(cache) == before
        assert str(folder / "config.json") in json.loads(cache.read_text())

    def test_cache_that_cannot_be_written(self, folder: Path, tmp_path: Path, cache: Path) -> None:
        (tmp_path / "file").write_text("")
        expected = open_checkpoint(folder).fingerprint(cache)
        assert open_checkpoint(folder).fingerprint(tmp_path / "file" / "sha256.json") == expected

    def test_needs_no_torch(self, folder: Path, cache: Path) -> None:
        code = (
            "import sys; from pathlib import Path; from edgeforge.checkpoint import open_checkpoint;"
            "print(open_checkpoint(sys.argv[1]).fingerprint(Path(sys.argv[2])));"
            "print(sorted({'torch', 'transformers'} & sys.modules.keys()))"
        )
        command = [sys.executable, "-c", code, str(folder), str(cache)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        assert printed == [open_checkpoint(folder).fingerprint(cache), "[]"]
