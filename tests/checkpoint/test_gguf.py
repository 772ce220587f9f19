"""GGUF files: the same model and the same ids as the HuggingFace folder they were made of, or a refusal."""

from __future__ import annotations

import contextlib
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf_files
import numpy as np
import pytest
import tiny
import tiny_checkpoint
import torch
from checkpoints import refusal
from gguf import GGMLQuantizationType as Kind
from tokenizers import AddedToken, Tokenizer, pre_tokenizers

from edgeforge.checkpoint import gguf_load, load_model, load_tokenizer, open_checkpoint
from edgeforge.errors import EdgeForgeError, UnsupportedError

IDS = torch.tensor(tiny.ids(24))[None]
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama-tied", {}),
    "llama, head_dim apart": ("llama-wide-heads", {}),
    "llama with biases": ("llama", {"attention_bias": True}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 8}),  # GGUF has no key for it: head_dim but for the 27B
    "gemma3": ("gemma3", {"query_pre_attn_scalar": 16, "num_hidden_layers": 6, "layer_types": None,
                          "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                                              "full_attention": {"rope_type": "default", "rope_theta": 1e6}}}),
    "phi3": ("phi3", {}),
    "phi3, partial": ("phi3-partial", {}),
    "phi3 with a window": ("phi3", {"sliding_window": 16}),
}


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A HuggingFace folder with tokenizer, whose matrices are whole blocks of 32."""
    folder = tiny_checkpoint.make(tmp_path_factory.mktemp("gguf") / "source", tie_word_embeddings=True)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    # SmolLM's: digits one by one, then GPT-2's rule.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def template(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_files.write(load_model(open_checkpoint(source)), source, tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture
def file(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(template, tmp_path / "tiny.gguf"))


@torch.no_grad()
def logits(model: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    found: torch.Tensor = model(ids).logits
    return found


class TestModel:
    @pytest.mark.parametrize("name", FAMILIES)
    def test_equals_the_weights_it_was_made_of(self, name: str, source: Path, tmp_path: Path) -> None:
        family, changes = FAMILIES[name]
        original: Any = tiny.model(family, vocab_size=tiny_checkpoint.VOCAB, **changes)
        original.set_attn_implementation("eager")
        file = gguf_files.write(original, source, tmp_path / "m.gguf")
        found: Any = load_model(open_checkpoint(file))
        assert torch.allclose(logits(found), logits(original), atol=1e-5)
        assert {p.dtype for p in found.parameters()} == {torch.float32}

    @pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_1])
    def test_quantized_weights_come_out_as_llama_cpp_reads_them(
        self, source: Path, tmp_path: Path, kind: Kind
    ) -> None:
        original: Any = load_model(open_checkpoint(source))
        file = gguf_files.write(original, source, tmp_path / "q.gguf", kind)
        checkpoint = open_checkpoint(file)
        assert checkpoint.tensors["model.layers.0.self_attn.q_proj.weight"].dtype == kind.name
        found: Any = load_model(checkpoint)
        again, expected = gguf_files.tensors(found), gguf_files.dequantized(file)
        assert again.keys() == expected.keys()
        assert all(np.array_equal(again[n], expected[n]) for n in expected)
        relative = (logits(found) - logits(original)).norm() / logits(original).norm()
        assert 0 < relative < (0.02 if kind in (Kind.F16, Kind.BF16, Kind.Q8_0) else 0.5)

    def test_is_silent(self, file: Path, capfd: pytest.CaptureFixture[str]) -> None:
        load_model(open_checkpoint(file))
        assert capfd.readouterr() == ("", "")

    def test_config_and_name(self, file: Path, source: Path) -> None:
        found, original = open_checkpoint(file), open_checkpoint(source)
        for key in ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                    "intermediate_size", "vocab_size", "max_position_embeddings", "head_dim", "tie_word_embeddings",
                    "eos_token_id", "pad_token_id"):
            assert found.config[key] == original.config[key], key
        assert found.config["rope_theta"] == original.config["rope_parameters"]["rope_theta"]
        assert (found.name, found.format, found.folder) == ("tiny", "gguf", file.parent)

    def test_what_lies_beside_it_does_not_count(self, file: Path, cache: Path) -> None:
        before, ids = open_checkpoint(file).fingerprint(cache), load_tokenizer(open_checkpoint(file))("a 1").input_ids
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
                     "adapter_config.json"):
            (file.parent / name).write_text("{broken")
        assert open_checkpoint(file).fingerprint(cache) == before
        assert load_tokenizer(open_checkpoint(file))("a 1").input_ids == ids
        load_model(open_checkpoint(file))

    def test_the_fingerprint_is_of_the_contents(self, file: Path, cache: Path, tmp_path: Path) -> None:
        before = open_checkpoint(file).fingerprint(cache)
        moved = file.rename(tmp_path / "other.gguf")
        assert open_checkpoint(moved).fingerprint(cache) == before
        content = bytearray(moved.read_bytes())
        content[-1] ^= 1
        moved.write_bytes(content)
        assert open_checkpoint(moved).fingerprint(cache) != before

    def test_opens_without_torch(self, file: Path) -> None:
        code = ("import sys; from edgeforge.checkpoint import open_checkpoint; open_checkpoint(sys.argv[1]);"
                "print(sorted({'torch', 'transformers'} & sys.modules.keys()))")
        done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"


class TestTokenizer:
    TEXTS = ("Hello world", "in 2024  1234 and   7", "a\n\n  12", "x=3.14159;\ty", "   99", "naïve — 日本 5")

    def test_ids_equal_the_originals(self, file: Path, source: Path) -> None:
        found, original = load_tokenizer(open_checkpoint(file)), load_tokenizer(open_checkpoint(source))
        for text in self.TEXTS:
            assert found(text).input_ids == original(text).input_ids, text
            assert found.decode(found(text).input_ids) == text

    def test_without_the_digits_they_would_not(self, source: Path, tmp_path: Path) -> None:
        """The trap that `_split_digits` is there for: transformers takes GPT-2's rule for SmolLM's."""
        model: Any = load_model(open_checkpoint(source))
        plain = load_tokenizer(open_checkpoint(gguf_files.write(model, source, tmp_path / "p.gguf", pre="gpt-2")))
        original = load_tokenizer(open_checkpoint(source))
        assert any(plain(t).input_ids != original(t).input_ids for t in self.TEXTS)

    def test_an_ordinary_token_that_reads_like_an_end_is_none(self, source: Path) -> None:
        """Gemma's vocabulary has HTML's </s>."""
        tokenizer = load_tokenizer(open_checkpoint(source))
        tokenizer.add_tokens(AddedToken("</s>", special=False))
        before = gguf_load.stops(tokenizer)
        tokenizer.add_special_tokens({"additional_special_tokens": ["<end_of_turn>"]})
        assert gguf_load.stops(tokenizer) == [*before, tokenizer.convert_tokens_to_ids("<end_of_turn>")]
        assert tokenizer.convert_tokens_to_ids("</s>") not in before

    def test_special_tokens_and_template(self, file: Path, source: Path) -> None:
        found, original = load_tokenizer(open_checkpoint(file)), load_tokenizer(open_checkpoint(source))
        chat = [{"role": "user", "content": "1 + 1?"}]
        assert found.apply_chat_template(chat, tokenize=False) == original.apply_chat_template(chat, tokenize=False)
        assert (found.eos_token, found.pad_token) == (original.eos_token, original.pad_token)
        assert found("<|im_start|>").input_ids == original("<|im_start|>").input_ids

    def test_every_token_that_ends_an_answer_is_kept(self, file: Path) -> None:
        model: Any = load_model(open_checkpoint(file))
        assert sorted(model.generation_config.eos_token_id) == [0, 2]  # <|endoftext|>, <|im_end|>

    @pytest.mark.parametrize("pre", ["of-tomorrow", "default", None])
    def test_a_pre_tokenizer_that_is_not_known(self, source: Path, tmp_path: Path, pre: str | None) -> None:
        model: Any = load_model(open_checkpoint(source))
        checkpoint = open_checkpoint(gguf_files.write(model, source, tmp_path / "p.gguf", pre=pre))
        message = refusal(lambda: load_tokenizer(checkpoint), UnsupportedError).message
        assert repr(pre or "default") in message

    def test_none(self, source: Path, tmp_path: Path) -> None:
        model: Any = load_model(open_checkpoint(source))
        checkpoint = open_checkpoint(gguf_files.write(model, None, tmp_path / "n.gguf"))
        assert "no tokenizer" in refusal(lambda: load_tokenizer(checkpoint)).message


class TestRefused:
    @pytest.fixture
    def model(self, source: Path) -> Any:
        return load_model(open_checkpoint(source))

    @pytest.mark.parametrize(
        ("key", "value"),
        [("rope__scaling__type", "linear"), ("rope__scaling__factor", 4.0), ("attention__scale", 0.2),
         ("attention__clamp_kqv", 8.0), ("logit_scale", 0.0625), ("expert_count", 8)],
    )
    def test_a_key_that_nothing_reads(self, model: Any, tmp_path: Path, key: str, value: Any) -> None:
        file = gguf_files.write(model, None, tmp_path / "k.gguf", **{key: value})
        message = refusal(lambda: open_checkpoint(file), UnsupportedError).message
        assert f"llama.{key.replace('__', '.')}: {value}" in message

    def test_a_key_of_another_family(self, model: Any, tmp_path: Path) -> None:
        """Known to GGUF and to EdgeForge, but not to a Llama: found when the config is checked."""
        file = gguf_files.write(model, None, tmp_path / "k.gguf", attn_logit_softcapping=50.0)
        checkpoint = open_checkpoint(file)
        assert "attn_logit_softcapping: 50.0" in refusal(lambda: load_model(checkpoint)).message

    @pytest.mark.parametrize(("key", "value"), [("rope__scaling__type", "none"), ("rope__scaling__factor", 1.0),
                                                ("expert_count", 0), ("attention__causal", True)])
    def test_a_key_that_says_nothing_is_fine(self, model: Any, tmp_path: Path, key: str, value: Any) -> None:
        open_checkpoint(gguf_files.write(model, None, tmp_path / "k.gguf", **{key: value}))

    def test_rope_scaling_as_a_tensor(self, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Llama 3.1 and later: transformers would leave the tensor, and so the scaling, out."""
        self._add(monkeypatch, "rope_freqs.weight", np.ones(8, np.float32))
        file = gguf_files.write(model, None, tmp_path / "r.gguf")
        assert "rope_freqs.weight" in refusal(lambda: open_checkpoint(file), UnsupportedError).message

    def test_a_tensor_that_nothing_reads(self, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                         source: Path) -> None:
        self._add(monkeypatch, "blk.0.attn_extra.weight", np.ones(8, np.float32))
        file = gguf_files.write(model, source, tmp_path / "t.gguf")
        assert "blk.0.attn_extra.weight" in refusal(lambda: open_checkpoint(file)).message

    @pytest.mark.parametrize("name", ["blk.0.attn_q_norm.weight", "blk.2.attn_q.weight", "blk.0.ffn_up.bias"])
    def test_a_tensor_of_another_family_or_size(self, model: Any, tmp_path: Path, source: Path, name: str,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
        """transformers would leave it out without a word."""
        self._add(monkeypatch, name, np.ones(8, np.float32))
        checkpoint = open_checkpoint(gguf_files.write(model, source, tmp_path / "t.gguf"))
        assert "have no place in LlamaForCausalLM" in refusal(lambda: load_model(checkpoint)).message

    def test_a_tensor_that_is_missing(self, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                      source: Path) -> None:
        whole = gguf_files.tensors(model)
        del whole["blk.1.ffn_up.weight"]
        monkeypatch.setattr(gguf_files, "tensors", lambda _: whole)
        checkpoint = open_checkpoint(gguf_files.write(model, source, tmp_path / "t.gguf"))
        error = refusal(lambda: load_model(checkpoint))
        assert "model.layers.1.mlp.up_proj.weight" in error.message
        assert "config.json" not in str(error), "a GGUF file has none"

    def test_a_tensor_of_another_shape(self, model: Any, tmp_path: Path, source: Path) -> None:
        checkpoint = open_checkpoint(gguf_files.write(model, source, tmp_path / "t.gguf", feed_forward_length=96))
        message = str(refusal(lambda: load_model(checkpoint)))
        assert "config.json" not in message
        assert "mlp.down_proj.weight is [64, 128], the config asks for [64, 96]" in message

    def test_more_layers_than_tensors(self, model: Any, tmp_path: Path) -> None:
        file = gguf_files.write(model, None, tmp_path / "t.gguf", block_count=10**9)
        assert "block_count" in refusal(lambda: open_checkpoint(file)).message

    def test_an_architecture_that_is_not_read(self, file: Path) -> None:
        content = file.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba", 1)
        file.write_bytes(content)
        message = refusal(lambda: open_checkpoint(file), UnsupportedError).message
        assert "'mamba'" in message
        assert "qwen3" in message

    def test_one_of_several_files(self, file: Path) -> None:
        shard = file.rename(file.with_name("tiny-00001-of-00003.gguf"))
        error = refusal(lambda: open_checkpoint(shard), UnsupportedError)
        assert "part 1 of 3" in error.message
        assert "--merge" in error.hint

    @staticmethod
    def _add(monkeypatch: pytest.MonkeyPatch, name: str, value: Any) -> None:
        plain = gguf_files.tensors
        monkeypatch.setattr(gguf_files, "tensors", lambda model: plain(model) | {name: value})


class TestDamaged:
    @pytest.mark.parametrize("part", [0.0001, 0.001, 0.01, 0.05, 0.3, 0.9, 0.9999])
    def test_truncated(self, file: Path, part: float) -> None:
        whole = file.read_bytes()
        file.write_bytes(whole[: int(len(whole) * part)])
        message = refusal(lambda: open_checkpoint(file)).message
        assert str(file) in message

    def test_the_tensor_and_the_missing_bytes_are_named(self, file: Path) -> None:
        """The last tensor is the final norm: 64 floats, so no padding behind it."""
        file.write_bytes(file.read_bytes()[:-100])
        message = refusal(lambda: open_checkpoint(file)).message
        assert "100 bytes are missing" in message
        assert "output_norm.weight" in message

    @pytest.mark.parametrize(
        ("offset", "value"),
        [(0, b"GGML"), (4, struct.pack("<I", 1)), (4, struct.pack("<I", 99)), (4, struct.pack(">I", 3)),
         (8, struct.pack("<Q", 1 << 60)), (8, struct.pack("<Q", 10**6)), (16, struct.pack("<Q", 1 << 60)),
         (16, struct.pack("<Q", 10**6)), (24, struct.pack("<Q", 1 << 62)), (24, struct.pack("<Q", 5000))],
        ids=str,
    )
    def test_a_header_that_lies(self, file: Path, offset: int, value: bytes) -> None:
        content = bytearray(file.read_bytes())
        content[offset : offset + len(value)] = value
        file.write_bytes(content)
        assert str(file) in refusal(lambda: open_checkpoint(file)).message

    def test_one_flipped_byte_anywhere_in_the_header_is_no_crash(self, file: Path) -> None:
        whole, generator = file.read_bytes(), np.random.default_rng(0)
        end = whole.index(b"blk.1.")
        for _ in range(300):
            content = bytearray(whole)
            content[generator.integers(0, end)] = generator.integers(0, 256)
            file.write_bytes(content)
            with contextlib.suppress(EdgeForgeError):
                open_checkpoint(file)

    @pytest.mark.parametrize("content", [b"", b"GGUF", b"version https://git-lfs.github.com/spec/v1\n", bytes(4096)])
    def test_another_file(self, file: Path, content: bytes) -> None:
        file.write_bytes(content)
        assert str(file) in refusal(lambda: open_checkpoint(file)).message
