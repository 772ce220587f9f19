"""`model:` in a recipe: each kind builds, or is refused with one clear line and nothing left."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf_files
import pytest
import tiny_checkpoint
import torch
from checkpoints import edit_config, refusal
from edgeforge_runtime.manifest import Manifest
from safetensors.torch import load_file
from test_pickled import Evil
from transformers import AutoModelForImageTextToText, CLIPVisionConfig, LlamaConfig, LlavaConfig

from edgeforge import recipe, targets
from edgeforge.build import Build
from edgeforge.checkpoint import Checkpoint, load_model, open_checkpoint
from edgeforge.errors import UnsupportedError
from edgeforge.stages import adapt

RECIPE = """\
model: {model}
out: {out}
target: {{chip: snapdragon-8-gen-3, context: 128, prefill: 32}}
"""


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint.make(tmp_path_factory.mktemp("models") / "tiny", tie_word_embeddings=True)


def write(folder: Path, model: object) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(RECIPE.format(model=model, out=folder / "out" / "bundle"), encoding="utf-8")
    return path


def adapted(folder: Path, model: Path) -> tuple[dict[str, str], Manifest]:
    """sha256 of what the adapt stage makes of a recipe's model, and its manifest."""
    out = folder / "adapted"
    out.mkdir(parents=True)
    made = recipe.load(write(folder, model))
    found = open_checkpoint(made.model, allow_pickle=True)
    job = Build(made, found, targets.chip(made.target.chip), 1, lambda text: None)
    assert all(c.passed for c in adapt.run(job, {}, out))
    files = [p for p in out.rglob("*") if p.is_file()]
    hashes = {str(p.relative_to(out)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
    return hashes, Manifest.load(out)


def test_folder_gguf_and_pickle_of_one_model_adapt_to_one_graph(source: Path, tmp_path: Path) -> None:
    model: Any = load_model(open_checkpoint(source))
    file = gguf_files.write(model, source, tmp_path / "tiny.gguf", pre="gpt-2")
    pickled = tmp_path / "pickled" / "tiny"
    pickled.mkdir(parents=True)
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            (pickled / path.name).write_bytes(path.read_bytes())
    torch.save(load_file(source / "model.safetensors"), pickled / "pytorch_model.bin")
    expected, manifest = adapted(tmp_path / "a", source)
    from_pickle, same = adapted(tmp_path / "b", pickled)
    assert from_pickle == expected
    from_gguf, described = adapted(tmp_path / "c", file)
    # Weights, graph, RoPE tables and logits to the bit; a GGUF's tokenizer only spells its settings otherwise.
    assert {n for n, h in from_gguf.items() if h != expected[n]} <= {
        "manifest.json", "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json"}
    assert (described.model.name, described.model.vocab_size, described.model.pad) == (
        manifest.model.name, manifest.model.vocab_size, manifest.model.pad)
    assert set(manifest.model.eos) <= set(described.model.eos) == {0, 2}
    assert same == manifest


class TestCommand:
    def build(self, folder: Path, model: object, *words: str, **environment: str) -> str:
        """stderr of a build that must fail with code 1, without a traceback and with nothing left."""
        command = [sys.executable, "-m", "edgeforge", "build", str(write(folder, model)), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False,
                              env=os.environ | environment)
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
        assert not (folder / "out" / "bundle").exists()
        assert not [p for p in (folder / "out").rglob("*") if p.is_file() and p.suffix != ".lock"]
        return done.stderr.replace("\n", " ")

    def test_a_pickle_unasked_for(self, folder: Path, tmp_path: Path) -> None:
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
        assert "--allow-pickle" in self.build(tmp_path, folder)

    def test_a_pickle_with_code_in_it(self, source: Path, tmp_path: Path) -> None:
        evil = tmp_path / "evil"
        evil.mkdir()
        for path in source.iterdir():
            if path.suffix != ".safetensors":
                (evil / path.name).write_bytes(path.read_bytes())
        torch.save({"a": Evil(f"touch {tmp_path / 'ran'}")}, evil / "pytorch_model.bin")
        assert "system" in self.build(tmp_path, evil, "--allow-pickle")
        assert not (tmp_path / "ran").exists()

    def test_a_key_that_nothing_reads(self, source: Path, tmp_path: Path) -> None:
        other = tmp_path / "other"
        other.mkdir()
        for path in source.iterdir():
            (other / path.name).write_bytes(path.read_bytes())
        edit_config(other, attn_logit_softcapping=50.0)
        assert "attn_logit_softcapping: 50.0" in self.build(tmp_path, other)

    def test_a_hub_id_offline(self, tmp_path: Path) -> None:
        said = self.build(tmp_path, "org/name@v1", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "hf"))
        assert "hf download org/name --revision v1" in said

    def test_half_a_gguf(self, source: Path, tmp_path: Path) -> None:
        file = gguf_files.write(load_model(open_checkpoint(source)), source, tmp_path / "half.gguf")
        file.write_bytes(file.read_bytes()[:-1000])
        assert "bytes are missing" in self.build(tmp_path, file)


def test_a_tied_model_with_pictures_is_refused_by_name(tmp_path: Path) -> None:
    """Case C13: no lm_head.weight and a text config inside; filled with random weights it would answer garbage."""
    text = LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, vocab_size=64)
    vision = CLIPVisionConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
                              image_size=28, patch_size=14)
    config = LlavaConfig(text_config=text, vision_config=vision, image_token_index=5, tie_word_embeddings=True)
    AutoModelForImageTextToText.from_config(config).save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert not [n for n in checkpoint.tensors if "lm_head" in n]
    assert "'llava'" in refusal(lambda: load_model(checkpoint), UnsupportedError).message


def test_the_fields_that_a_lock_needs(source: Path) -> None:
    found: Checkpoint = open_checkpoint(source)
    assert (found.source, found.revision, found.name) == (str(source), None, "tiny")
    assert json.loads((source / "config.json").read_text()) == found.config
