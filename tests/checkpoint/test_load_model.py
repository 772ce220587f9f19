"""Loading: all tensors, all parameters, all config keys; what doesn't fit is named."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from checkpoints import DOWN, EMBEDDING, HEAD, edit_config, edit_weights, refusal, refused_load, shard, tiny
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from edgeforge.checkpoint import load_model, load_tokenizer, open_checkpoint
from edgeforge.errors import UnsupportedError


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

    @pytest.mark.parametrize("changes", [{"rms_norm_eps": 0}, {"hidden_size": 64.5}, {"eos_token_id": "2"}], ids=str)
    def test_a_config_that_makes_no_model_is_not_the_tokenizers_fault(self, folder: Path,
                                                                      changes: dict[str, object]) -> None:
        """transformers reads the config for its tokenizer, too."""
        (folder / "tokenizer.json").write_text("{}")
        edit_config(folder, **changes)
        error = refusal(lambda: load_tokenizer(open_checkpoint(folder)))
        assert f"config.json makes no model: StrictDataclassFieldValidationError: Validation error for field "\
            f"'{next(iter(changes))}'" in error.message
        assert "tokenizer" not in str(error)

    def test_a_type_that_nobody_knows_is_told_without_transformers_own_advice(
            self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        (folder / "tokenizer.json").write_text("{}")
        edit_config(folder, model_type="llamma")
        assert "'llamma'" in refusal(lambda: load_tokenizer(open_checkpoint(folder)), UnsupportedError).message
        assert capfd.readouterr() == ("", "")


def test_a_size_of_zero_is_told_without_torchs_warning(folder: Path) -> None:
    edit_config(folder, hidden_size=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "another shape" in refused_load(folder).message
