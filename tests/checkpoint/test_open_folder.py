"""Opening a HuggingFace folder: what is read, and what is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from checkpoints import DOWN, edit_config, edit_weights, refusal, shard
from safetensors.torch import load_file, save_file

from edgeforge.checkpoint import open_checkpoint
from edgeforge.errors import UnsupportedError


class TestOpen:
    def test_reads_headers_as_they_are(self, folder: Path) -> None:
        checkpoint = open_checkpoint(folder)
        expected = load_file(folder / "model.safetensors")
        assert {n: t.shape for n, t in checkpoint.tensors.items()} == {
            n: tuple(t.shape) for n, t in expected.items()
        }
        assert {t.dtype for t in checkpoint.tensors.values()} == {"F32"}
        assert checkpoint.config["model_type"] == "llama"
        assert checkpoint.weight_files == (folder / "model.safetensors",)

    def test_bfloat16_needs_no_torch(self, folder: Path) -> None:
        edit_weights(folder, lambda w: {n: t.bfloat16() for n, t in w.items()})
        assert {t.dtype for t in open_checkpoint(folder).tensors.values()} == {"BF16"}

    def test_shards(self, folder: Path) -> None:
        names = set(open_checkpoint(folder).tensors)
        shards = shard(folder)
        checkpoint = open_checkpoint(str(folder))
        assert set(checkpoint.tensors) == names
        assert list(checkpoint.weight_files) == shards
        assert {t.file for t in checkpoint.tensors.values()} == set(shards)

    def test_missing_shard_is_named(self, folder: Path) -> None:
        shard(folder)[1].unlink()
        error = refusal(lambda: open_checkpoint(folder))
        assert "1 of 2" in error.message
        assert "model-00002-of-00002.safetensors" in error.message

    def test_index_of_another_version(self, folder: Path) -> None:
        file = shard(folder)[0].with_name("model.safetensors.index.json")
        index = json.loads(file.read_text())
        index["weight_map"]["model.layers.7.mlp.down_proj.weight"] = "model-00001-of-00002.safetensors"
        file.write_text(json.dumps(index))
        assert "layers.7" in refusal(lambda: open_checkpoint(folder)).message

    def test_tensor_in_two_shards(self, folder: Path) -> None:
        first, second = shard(folder)
        save_file(load_file(first) | load_file(second), second, {"format": "pt"})
        assert first.name in refusal(lambda: open_checkpoint(folder)).message

    @pytest.mark.parametrize("keep", [0, 4, 100, -1])
    def test_truncated_weights(self, folder: Path, keep: int) -> None:
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:keep])
        error = refusal(lambda: open_checkpoint(folder))
        assert str(file) in error.message
        assert "truncated" in error.message

    def test_how_much_is_missing_or_too_much_is_said(self, folder: Path) -> None:
        file = folder / "model.safetensors"
        whole = file.read_bytes()
        file.write_bytes(whole[:-1000])
        assert f"is truncated: {len(whole) - 1000:,} bytes of {len(whole):,}, 1,000 are missing" in refusal(
            lambda: open_checkpoint(folder)).message
        file.write_bytes(whole + b"tail")
        message = refusal(lambda: open_checkpoint(folder)).message
        assert f"has 4 bytes behind its last tensor: {len(whole) + 4:,}, its header declares {len(whole):,}" in message
        assert "truncated" not in message

    @pytest.mark.parametrize("head", [b"{", b"[1]", b'{"a": {"data_offsets": [0]}}', b'{"a": 7}', b"\xff"])
    def test_a_header_of_strange_values_is_no_traceback(self, folder: Path, head: bytes) -> None:
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head)
        assert "is not a safetensors file" in refusal(lambda: open_checkpoint(folder)).message

    def test_weights_under_another_name(self, folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "consolidated.safetensors")
        error = refusal(lambda: open_checkpoint(folder))
        assert "it holds consolidated.safetensors, which nothing names" in error.message
        assert "rename it to model.safetensors" in error.hint

    def test_git_lfs_pointer(self, folder: Path) -> None:
        pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
        (folder / "model.safetensors").write_text(pointer)
        assert "git lfs pull" in refusal(lambda: open_checkpoint(folder)).hint

    def test_missing_config(self, folder: Path) -> None:
        (folder / "config.json").unlink()
        assert "config.json" in refusal(lambda: open_checkpoint(folder)).message

    @pytest.mark.parametrize("text", ["{", "[]", '{"hidden_size": 1}', "\xff"])
    def test_damaged_config(self, folder: Path, text: str) -> None:
        (folder / "config.json").write_text(text, encoding="latin-1")
        assert "config.json" in refusal(lambda: open_checkpoint(folder)).message

    def test_bin_only(self, folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        error = refusal(lambda: open_checkpoint(folder))
        assert "pytorch_model.bin" in error.message
        assert "save_pretrained" in error.hint
        assert "--allow-pickle" in error.hint

    def test_shards_without_an_index(self, folder: Path) -> None:
        shard(folder)
        (folder / "model.safetensors.index.json").unlink()
        assert "model-00001-of-00002" in refusal(lambda: open_checkpoint(folder)).message

    def test_path_that_is_not_there(self, tmp_path: Path) -> None:
        assert f"there is no {tmp_path / 'nowhere'}" in refusal(lambda: open_checkpoint(tmp_path / "nowhere")).message
        assert "no GGUF file" in refusal(lambda: open_checkpoint(__file__)).message

    def test_gguf(self, folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "model.gguf")
        assert "path of the .gguf file" in refusal(lambda: open_checkpoint(folder)).hint

    def test_quantized(self, folder: Path) -> None:
        edit_config(folder, quantization_config={"quant_method": "awq"})
        assert "awq" in refusal(lambda: open_checkpoint(folder), UnsupportedError).message

    def test_codes_without_a_quantization_config(self, folder: Path) -> None:
        edit_weights(folder, lambda w: w | {DOWN: w[DOWN].to(torch.int8)})
        assert f"{DOWN} (I8)" in refusal(lambda: open_checkpoint(folder), UnsupportedError).message

    def test_adapter(self, folder: Path) -> None:
        (folder / "adapter_config.json").write_text("{}")
        assert "LoRA" in refusal(lambda: open_checkpoint(folder), UnsupportedError).message
