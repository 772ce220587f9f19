"""Folders that a stranger made: links out of the tree, lying headers, bombs. Refused, and nothing written."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import DOWN, edit_config, edit_weights, refusal, refused_load, shard

from edgeforge.checkpoint import load_tokenizer, open_checkpoint

WEIGHTS = "model.safetensors"


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    found = [folder, *folder.rglob("*")]
    return {str(p): (s.st_size, s.st_mtime_ns) for p in found if (s := p.lstat())}


def refused(folder: Path) -> str:
    """The refusal's message; it must have left the folder and what lies beside it alone."""
    before = snapshot(folder.parent)
    error = refusal(lambda: open_checkpoint(folder))
    assert snapshot(folder.parent) == before
    return error.message


def header(entries: dict[str, Any] | str, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with whatever header."""
    text = (entries if isinstance(entries, str) else json.dumps(entries)).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def one(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


class TestWeights:
    @pytest.mark.parametrize(
        "content",
        [
            b"",
            header({"a": one()}, b"\0" * 4),  # data cut off
            header({"a": one()}, b"\0" * 12),  # data too long
            header({"a": one()}, b"\0" * 8, length=1 << 20),  # header longer than the file
            header({"a": one()}, b"\0" * 8, length=1 << 62),
            header({"a": one(offsets=(0, 8)), "b": one(offsets=(4, 12))}, b"\0" * 12),  # overlap
            header({"a": one(offsets=(8, 16))}, b"\0" * 16),  # a hole
            header({"a": one(offsets=(8, 0))}, b"\0" * 8),
            header({"a": one(shape=(3,))}, b"\0" * 8),  # size and shape disagree
            header({"a": one(shape=(1 << 62, 1 << 62))}, b"\0" * 8),
            header({"a": one(shape=(-2,))}, b"\0" * 8),
            header({"a": one(dtype="F31")}, b"\0" * 8),
            header({"a": {"dtype": "F32"}}, b"\0" * 8),
            header("[1]", b""),
            header("{" * 100_000, b""),
            header('{"a": 1', b""),
            b"\x04\0\0\0\0\0\0\0\xff\xfe\xff\xfe",
        ],
        ids=lambda content: content[:40].hex(),
    )
    def test_a_header_that_lies(self, folder: Path, content: bytes) -> None:
        (folder / WEIGHTS).write_bytes(content)
        assert WEIGHTS in refused(folder)

    def test_a_tensor_declared_twice(self, folder: Path) -> None:
        entry = json.dumps(one())
        (folder / WEIGHTS).write_bytes(header(f'{{"a": {entry}, "a": {entry}}}', b"\0" * 8))
        assert "'a' twice" in refused(folder)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_a_weight_that_is_no_number(self, folder: Path, value: float) -> None:
        def spoil(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            tensors[DOWN][3, 5] = value
            return tensors

        edit_weights(folder, spoil)
        assert f"NaN or infinity (as float32) in {DOWN}" in refused_load(folder).message

    def test_a_double_beyond_float32(self, folder: Path) -> None:
        edit_weights(folder, lambda w: w | {DOWN: w[DOWN].double() * 1e300})
        assert DOWN in refused_load(folder).message

    def test_more_layers_than_tensors(self, folder: Path) -> None:
        """Building them, even without weights, would take for ever."""
        edit_config(folder, num_hidden_layers=10**9)
        assert "num_hidden_layers: 1000000000" in refused(folder)


class TestIndex:
    @pytest.mark.parametrize("name", ["../evil.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".", "",
                                      "..\\evil", "a\0b", 7, None, ["x"]])
    def test_a_name_that_is_no_plain_file_name(self, folder: Path, name: object) -> None:
        shard(folder)
        (folder.parent / "evil.safetensors").write_bytes(b"x")
        file = folder / "model.safetensors.index.json"
        index = json.loads(file.read_text())
        index["weight_map"][DOWN] = name
        file.write_text(json.dumps(index))
        assert file.name in refused(folder)

    @pytest.mark.parametrize("text", ["{}", '{"weight_map": {}}', '{"weight_map": []}', "[]", "{", "[" * 100_000])
    def test_damaged(self, folder: Path, text: str) -> None:
        shard(folder)
        (folder / "model.safetensors.index.json").write_text(text)
        assert "model.safetensors.index.json" in refused(folder)


class TestFiles:
    @pytest.mark.parametrize("name", ["config.json", WEIGHTS, "generation_config.json", "chat_template.jinja"])
    def test_a_link_out_of_the_folder(self, folder: Path, name: str) -> None:
        outside = folder.parent / f"outside-{name}"
        (folder / name).rename(outside) if (folder / name).exists() else outside.write_text("{}")
        (folder / name).symlink_to(outside)
        assert f"{folder / name} is a link out of the checkpoint's folder, to {outside}" in refused(folder)

    def test_a_folder_that_is_itself_a_link(self, folder: Path) -> None:
        (folder.parent / "model").symlink_to(folder)
        assert open_checkpoint(folder.parent / "model").tensors

    def test_a_link_within_the_folder(self, folder: Path) -> None:
        (folder / "v1").mkdir()
        (folder / WEIGHTS).rename(folder / "v1" / "weights")
        (folder / WEIGHTS).symlink_to("v1/weights")
        assert open_checkpoint(folder).tensors

    def test_the_hubs_own_layout(self, folder: Path, tmp_path: Path) -> None:
        repository = tmp_path / "hub" / "models--org--name"
        place = repository / "snapshots" / ("a" * 40)
        place.mkdir(parents=True)
        (repository / "blobs").mkdir()
        for i, file in enumerate(sorted(folder.iterdir())):
            file.rename(repository / "blobs" / str(i))
            (place / file.name).symlink_to(f"../../blobs/{i}")
        assert open_checkpoint(place).tensors
        (place / "config.json").unlink()
        (place / "config.json").symlink_to("../../../elsewhere.json")
        (tmp_path / "hub" / "elsewhere.json").write_text("{}")
        assert "link out of" in refused(place)

    @pytest.mark.parametrize("name", ["config.json", WEIGHTS])
    def test_a_link_to_nothing(self, folder: Path, name: str) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to("gone")
        assert "which is not there" in refused(folder)

    @pytest.mark.parametrize("name", ["config.json", WEIGHTS, "tokenizer.json"])
    @pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "fifo"])
    def test_no_file(self, folder: Path, name: str, make: Callable[[Path], None]) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)
        assert f"{folder / name} is a" in refused(folder)

    @pytest.mark.skipif(os.geteuid() == 0 and not Path("/usr/bin/setpriv").exists(), reason="root reads everything")
    @pytest.mark.parametrize("name", ["config.json", WEIGHTS])
    def test_a_file_that_may_not_be_read(self, folder: Path, name: str) -> None:
        (folder / name).chmod(0)
        code = (
            "import sys\n"
            "from edgeforge.checkpoint import open_checkpoint\n"
            "from edgeforge.errors import CheckpointError\n"
            "try: open_checkpoint(sys.argv[1])\n"
            "except CheckpointError as e: print(e)\n"
        )
        command = [sys.executable, "-c", code, str(folder)]
        if os.geteuid() == 0:
            drop = "-dac_override,-dac_read_search"
            command = ["setpriv", "--bounding-set", drop, "--inh-caps", drop, *command]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "Permission denied" in printed
        assert name in printed


class TestConfig:
    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            (b"", "is not JSON"),
            (b"\xff\xfe{\0}\0", "is not JSON"),
            (b'{"model_type": "llama", "model_type": "gemma2"}', "'model_type' is there twice"),
            (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nests too deeply"),
            (b"[" * 100_000, "nests too deeply"),
            (b'{"model_type": 7}', "has no `model_type`"),
            (b'{"model_type": "llama", "num_hidden_layers": 1' + b"0" * 5000 + b"}", "is not JSON"),
        ],
    )
    def test_no_config(self, folder: Path, text: bytes, wanted: str) -> None:
        (folder / "config.json").write_bytes(text)
        before = time.monotonic()
        message = refused(folder)
        assert wanted in message
        assert len(message) < 1000
        assert time.monotonic() - before < 5

    def test_a_config_without_end(self, folder: Path) -> None:
        with (folder / "config.json").open("wb") as sparse:
            sparse.truncate(10 << 30)
        assert "at most" in refused(folder)

    @pytest.mark.parametrize(
        "changes",
        [{"hidden_size": "big"}, {"hidden_size": 0}, {"hidden_size": -32}, {"num_attention_heads": 0},
         {"num_attention_heads": 5}, {"rope_scaling": "yes"}, {"rope_scaling": {"rope_type": "spiral"}},
         {"hidden_act": "nothing"}, {"num_key_value_heads": 3}, {"vocab_size": None}, {"rms_norm_eps": "tiny"},
         {"layer_types": 7}, {"rope_theta": []}, {"text_config": {"hidden_size": 8}}],
        ids=str,
    )
    def test_a_value_that_makes_no_model(self, folder: Path, changes: dict[str, Any]) -> None:
        edit_config(folder, **changes)
        assert len(refused_load(folder).message) < 1500


class TestGeneration:
    """transformers ignores a damaged one, and the answer would never end."""

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"eos_token_id": "2"}', '{"eos_token_id": [2, null]}',
                                      '{"eos_token_id": -1}', '{"eos_token_id": true}', '{"eos_token_id": {"a": 1}}'])
    def test_damaged(self, folder: Path, text: str) -> None:
        (folder / "generation_config.json").write_text(text)
        assert "generation_config.json" in refused(folder)

    @pytest.mark.parametrize("eos", [None, 2, [2, 0], []])
    def test_whole(self, folder: Path, eos: object) -> None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
        open_checkpoint(folder)


class TestTokenizer:
    @pytest.mark.parametrize("text", ["", "{", "[]", '{"model": {}}', "[" * 100_000, "\0"])
    def test_damaged(self, folder: Path, text: str) -> None:
        (folder / "tokenizer.json").write_text(text)
        checkpoint = open_checkpoint(folder)
        assert "cannot be read" in refusal(lambda: load_tokenizer(checkpoint)).message

    def test_code_of_its_own_is_not_run(self, folder: Path, tmp_path: Path) -> None:
        (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
        edit_config(folder, auto_map={"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil",
                                      "AutoTokenizer": ["evil.Evil", None]})
        (folder / "tokenizer_config.json").write_text(json.dumps(
            {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "tokenizer_class": "Evil"}))
        (folder / "tokenizer.json").write_text("{}")
        checkpoint = open_checkpoint(folder)
        refusal(lambda: load_tokenizer(checkpoint))
        assert not (tmp_path / "ran").exists()
